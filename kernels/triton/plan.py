"""Cut a step into units of work for the attention kernel; numpy on the host, once per step.

A *tile* is a run of query tokens whose rows one program holds (tokens times the query heads
of one KV head). An *item* is a run of keys that a tile must walk: *bulk* when every row of
the tile sees every key and the run is whole key tiles, *masked* otherwise. A *unit* is one
program per KV head: a tile with its items, or a share of them when a tile is split.

A row's own trie node needs no positions: the row sees the packed rows
``[own_lo, own_hi)``, so the own nodes of all rows of a tile are one masked item.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kernels.api import IntArray, SpanTable

LongArray = npt.NDArray[np.int64]

# a cut between two trie branches pays when they differ by more keys than a few key tiles
_WORTH_A_CUT = 4

# fewer key tiles than this are not worth the traffic of a split
_LEAST_SPLIT = 4


class Segment(IntEnum):
    """The four loops of the kernel, in the order in which it runs them."""

    POOL_BULK = 0
    FRESH_BULK = 1
    POOL_MASKED = 2
    FRESH_MASKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What decides the cut besides the span table.

    Args:
        tile_tokens: Most query tokens of a tile.
        tile_keys: Keys per iteration of a loop.
        window: Positions that a query sees, itself included; None for all.
        target_units: Units below which long tiles are split; 0 never splits.
    """

    tile_tokens: int
    tile_keys: int
    window: int | None
    target_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkList:
    """Everything the kernel reads besides tensors; all int32.

    ``units``   [U, 8]: token_lo, token_hi, partial (-1: write the result), then five bounds:
    the items of loop ``s`` are ``[bounds[s], bounds[s + 1])``. Longest first.
    ``items``   [I, 6]: first and end of the run (packed rows, or slots along ``block_ids``);
    the tokens ``[query_lo, query_hi)`` that see it; shift (position of a key minus its
    index); own (1: rows have their own bounds).
    ``rows``    [3, Q]: position, own_lo, own_hi.
    ``merges``  [X, 4]: token_lo, token_hi, first partial, number of partials.
    """

    units: IntArray
    items: IntArray
    rows: IntArray
    block_ids: IntArray
    merges: IntArray
    num_partials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    lo: LongArray
    hi: LongArray

    def extremes(self, values: LongArray) -> tuple[LongArray, LongArray]:
        """Least and greatest of a per-row value in every tile."""
        return np.minimum.reduceat(values, self.lo), np.maximum.reduceat(values, self.lo)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Items:
    """Runs of keys, each with the tile that walks it."""

    tile: LongArray
    segment: LongArray
    record: LongArray  # [I, 6], as in WorkList

    @staticmethod
    def join(parts: list[_Items]) -> _Items:
        """All items that hold a key."""
        record = np.concatenate([part.record for part in parts])
        used = record[:, 0] < record[:, 1]
        return _Items(
            tile=np.concatenate([part.tile for part in parts])[used],
            segment=np.concatenate([part.segment for part in parts])[used],
            record=record[used],
        )


def build(table: SpanTable, geometry: Geometry) -> WorkList:
    """The work of one step; ``table`` has at least one query row and has been checked."""
    rows = _row_bounds(table, geometry.window)
    tiles = _cut_tiles(table, geometry)
    items = _Items.join([*_shared_items(table, tiles, rows, geometry), *_own_items(tiles, rows, geometry)])
    return _share_out(tiles, items, rows, table.block_ids, geometry)


def _row_bounds(table: SpanTable, window: int | None) -> LongArray:
    """``[3, Q]``: position, and the packed rows ``[own_lo, own_hi)`` of the own node that a row sees."""
    own = np.flatnonzero(table.causal & (table.query_lo < table.query_hi))
    own = own[np.argsort(table.query_lo[own])]
    span = np.repeat(own, table.query_hi[own] - table.query_lo[own])
    position = table.positions.astype(np.int64)
    key_lo = table.key_lo[span].astype(np.int64)
    own_row = key_lo + position - table.key_position[span]
    own_hi = np.clip(own_row + 1, key_lo, key_lo + table.key_tokens[span])
    own_lo = key_lo if window is None else np.clip(own_row - window + 1, key_lo, own_hi)
    return np.stack([position, own_lo, own_hi])


def _cut_tiles(table: SpanTable, geometry: Geometry) -> _Tiles:
    """Consecutive tokens of a tile may belong to any rows; cut early only between long branches.

    A cut at an edge of the trie pays when the branches on its two sides hold more keys than
    what both sides share and would then walk twice.
    """
    used = table.query_lo < table.query_hi
    starts, ends = (
        np.bincount(edge[used], weights=table.key_tokens[used], minlength=table.num_queries + 1)
        for edge in (table.query_lo, table.query_hi)
    )
    shared = np.cumsum(starts - ends) - starts  # keys of the spans that go through an edge
    apart = starts + ends
    worth = (apart >= _WORTH_A_CUT * geometry.tile_keys) & (apart > shared)
    edges = np.union1d(np.flatnonzero(worth), [0, table.num_queries])
    length = np.diff(edges)
    pieces = -(-length // geometry.tile_tokens)
    run = np.repeat(np.arange(len(length)), pieces)
    lo = edges[run] + _count_up(pieces) * geometry.tile_tokens
    return _Tiles(lo=lo, hi=np.minimum(lo + geometry.tile_tokens, edges[run + 1]))


def _shared_items(table: SpanTable, tiles: _Tiles, rows: LongArray, geometry: Geometry) -> list[_Items]:
    """The items of the spans of ancestors, which all rows of the span see in full (or by window)."""
    spans = np.flatnonzero(~table.causal & (table.query_lo < table.query_hi))
    first_tile = np.searchsorted(tiles.hi, table.query_lo[spans], side="right")
    last_tile = np.searchsorted(tiles.lo, table.query_hi[spans], side="left")
    span = np.repeat(spans, last_tile - first_tile)
    tile = np.repeat(first_tile, last_tile - first_tile) + _count_up(last_tile - first_tile)
    first = table.key_lo[span].astype(np.int64)
    end = first + table.key_tokens[span]
    shift = table.key_position[span] - first
    covered = (table.query_lo[span] <= tiles.lo[tile]) & (table.query_hi[span] >= tiles.hi[tile])
    seen_by_one, seen_by_all = first, first
    if geometry.window is not None:
        least, greatest = (extreme[tile] for extreme in tiles.extremes(rows[0]))
        seen_by_one = np.clip(least - geometry.window + 1 - shift, first, end)
        seen_by_all = np.clip(greatest - geometry.window + 1 - shift, first, end)
    bulk_end = np.where(covered, seen_by_all + _whole_tiles(end - seen_by_all, geometry), seen_by_one)
    bulk_first = np.where(covered, seen_by_all, seen_by_one)
    pool = table.from_pool[span]
    who = np.stack([table.query_lo[span], table.query_hi[span], shift, np.zeros_like(shift)], axis=1)

    def part(lo: LongArray, hi: LongArray, *, bulk: bool) -> _Items:
        segment = np.where(
            pool,
            Segment.POOL_BULK if bulk else Segment.POOL_MASKED,
            Segment.FRESH_BULK if bulk else Segment.FRESH_MASKED,
        )
        return _Items(tile=tile, segment=segment, record=np.column_stack([lo, hi, who]))

    return [
        part(seen_by_one, bulk_first, bulk=False),
        part(bulk_first, bulk_end, bulk=True),
        part(bulk_end, end, bulk=False),
    ]


def _own_items(tiles: _Tiles, rows: LongArray, geometry: Geometry) -> list[_Items]:
    """One run per tile over the own nodes of its rows; the part that all rows see is bulk."""
    lo_min, lo_max = tiles.extremes(rows[1])
    hi_min, hi_max = tiles.extremes(rows[2])
    bulk_tokens = _whole_tiles(np.maximum(hi_min - lo_max, 0), geometry)
    bulk_first = np.where(bulk_tokens > 0, lo_max, lo_min)
    bulk_end = bulk_first + bulk_tokens
    tile = np.arange(len(tiles.lo))
    nothing = np.zeros_like(tiles.lo)

    def part(lo: LongArray, hi: LongArray, segment: Segment) -> _Items:
        record = np.column_stack([lo, hi, tiles.lo, tiles.hi, nothing, nothing + 1])
        return _Items(tile=tile, segment=np.full(len(tile), segment), record=record)

    return [
        part(lo_min, bulk_first, Segment.FRESH_MASKED),
        part(bulk_first, bulk_end, Segment.FRESH_BULK),
        part(bulk_end, hi_max, Segment.FRESH_MASKED),
    ]


def _share_out(tiles: _Tiles, items: _Items, rows: LongArray, block_ids: IntArray, geometry: Geometry) -> WorkList:
    """Units from tiles; a tile far above the mean load is split along its keys.

    With too few tiles to fill the device the mean load is small, so that the same rule
    splits all of them.
    """
    cost = _num_key_tiles(items.record, geometry)
    tile_cost = np.bincount(items.tile, weights=cost, minlength=len(tiles.lo)).astype(np.int64)
    share = _share(tile_cost, geometry)
    num_units = np.maximum(-(-tile_cost // share), 1)
    first_unit = np.cumsum(num_units) - num_units

    order = np.argsort(items.tile, kind="stable")
    tile, record, segment, cost = items.tile[order], items.record[order], items.segment[order], cost[order]
    before = np.cumsum(cost) - cost - (np.cumsum(tile_cost) - tile_cost)[tile]
    first_share = before // share[tile]
    pieces = (before + cost - 1) // share[tile] - first_share + 1
    source = np.repeat(np.arange(len(tile)), pieces)
    piece = first_share[source] + _count_up(pieces)
    cut = np.stack([piece, piece + 1]) * share[tile[source]] - before[source]
    record = record[source]
    end = record[:, 1].copy()
    record[:, 1] = np.minimum(record[:, 0] + cut[1] * geometry.tile_keys, end)
    record[:, 0] += np.maximum(cut[0], 0) * geometry.tile_keys

    unit = first_unit[tile[source]] + piece
    grouped = np.lexsort((segment[source], unit))
    split = num_units > 1
    num_partials = int(num_units[split].sum())
    unit_tile = np.repeat(np.arange(len(num_units)), num_units)
    partial = np.full(len(unit_tile), -1)
    partial[split[unit_tile]] = np.arange(num_partials)
    bounds = np.searchsorted(
        (unit * len(Segment) + segment[source])[grouped],
        np.arange(len(unit_tile))[:, None] * len(Segment) + np.arange(len(Segment) + 1),
    )
    units = np.column_stack([tiles.lo[unit_tile], tiles.hi[unit_tile], partial, bounds])
    unit_cost = np.bincount(unit, weights=_num_key_tiles(record, geometry), minlength=len(units))
    return WorkList(
        units=units[np.argsort(-unit_cost, kind="stable")].astype(np.int32),
        items=record[grouped].astype(np.int32),
        rows=rows.astype(np.int32),
        block_ids=block_ids,
        merges=np.column_stack(
            [tiles.lo[split], tiles.hi[split], np.cumsum(num_units[split]) - num_units[split], num_units[split]]
        ).astype(np.int32),
        num_partials=num_partials,
    )


def _num_key_tiles(record: LongArray, geometry: Geometry) -> LongArray:
    tiles: LongArray = -(-(record[:, 1] - record[:, 0]) // geometry.tile_keys)
    return tiles


def _share(tile_cost: LongArray, geometry: Geometry) -> LongArray:
    """Most key tiles of a unit, per tile: pieces of one tile are of about equal length."""
    whole = np.maximum(tile_cost, 1)
    if geometry.target_units == 0:
        return whole
    most = max(_LEAST_SPLIT, -(-int(tile_cost.sum()) // geometry.target_units))
    share: LongArray = -(-whole // -(-whole // most))
    return share


def _whole_tiles(tokens: LongArray, geometry: Geometry) -> LongArray:
    return tokens // geometry.tile_keys * geometry.tile_keys


def _count_up(counts: LongArray) -> LongArray:
    """``0, 1, .. n - 1`` for every ``n`` of ``counts``, end to end."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
