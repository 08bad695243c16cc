"""How a step is cut for the attention of ``attention.c``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kernels.api import IntArray, SpanTable
from kernels.spans import previous_spans

_Index = npt.NDArray[np.int64]

# The order of sums over keys, as attention.c has it: in tiles, and in stretches that begin with empty sums,
# both from multiples of their length on.
TILE_KEYS = 32
STRETCH = 512
# Keys are repacked once for each unit that sees them, so many rows a unit are good; and every
# thread should get a few units.
_MOST_ROWS = 512
_LEAST_ROWS = 96
_UNITS_PER_THREAD = 4
_WHOLE = -1  # in place of a share


@dataclass(frozen=True, kw_only=True)  # no slots: they leave no room for what is worked out once
class AttentionWork:
    """A step cut into units: runs of query tokens, each with the runs of keys that they see.

    ``units`` [U, 5]: query_lo, query_hi, item_lo, item_hi, share; most work first. A unit without a share (-1)
    gives results; the others hold the items of one stretch of keys and give a share of them.
    ``joins`` [J, 4]: query_lo, query_hi, share_lo, share_hi: results from the shares of these queries, in order.
    ``items`` [I, 7]: query_lo, query_hi, position, tokens, causal, piece, skip. Queries see ``tokens`` keys from
    ``position``, a multiple of ``TILE_KEYS``, on, none of another stretch. Those of a unit are in order of position.
    ``pieces`` [P, 3]: key_lo, tokens, from_pool, as in :class:`kernels.api.SpanTable`. The keys of an item are in the
    pieces from ``piece`` on, laid end to end, after the first ``skip``.
    """

    units: IntArray
    joins: IntArray
    items: IntArray
    pieces: IntArray
    positions: IntArray
    block_ids: IntArray
    block_size: int
    unit_tokens: int

    @cached_property
    def num_shares(self) -> int:
        return int(self.joins[:, 3].max(initial=0))

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where the C code finds the arrays, in its order."""
        arrays = (self.units, self.items, self.pieces, self.joins, self.positions, self.block_ids)
        return tuple(array.ctypes.data for array in arrays)


def cut(table: SpanTable, *, group: int, kv_heads: int, num_threads: int) -> AttentionWork:
    """Units of a step for ``group`` query heads to each of ``kv_heads`` KV heads.

    No tile of keys is cut where a span ends and another begins: its keys go to the lower span, whose rows are
    all that see the whole tile. Units with few rows are given to several threads, a stretch of keys to each.
    """
    fair = table.num_queries * group * kv_heads // (_UNITS_PER_THREAD * num_threads)
    unit_tokens = max(min(max(fair, _LEAST_ROWS), _MOST_ROWS) // group, 1)
    query_edges = np.append(np.arange(0, table.num_queries, unit_tokens), table.num_queries)
    split = num_threads > 1 and (len(query_edges) - 1) * kv_heads < _UNITS_PER_THREAD * num_threads
    unit, items, pieces = _items(table, unit_tokens)
    units, joins = _units(unit, items, query_edges, split=split)
    return AttentionWork(
        units=units,
        joins=joins,
        items=items,
        pieces=pieces,
        positions=np.ascontiguousarray(table.positions),
        block_ids=np.ascontiguousarray(table.block_ids),
        block_size=table.block_size,
        unit_tokens=unit_tokens,
    )


def _items(table: SpanTable, unit_tokens: int) -> tuple[_Index, IntArray, IntArray]:
    """Items in order of unit and position, the unit of each, and pieces."""
    low = table.key_position.astype(np.int64)
    high = low + table.key_tokens
    low_tile = low // TILE_KEYS * TILE_KEYS
    # rows that see all of a span see more keys after it, and those complete its last tile
    high_tile = np.where(table.causal, high, high // TILE_KEYS * TILE_KEYS)
    spans = np.flatnonzero((low_tile < high_tile) & (table.query_lo < table.query_hi))
    pieces, first_piece = _pieces(table, spans, high_tile[spans] - low[spans])
    place, stretch = _count_up(low_tile[spans] // STRETCH, (high_tile[spans] - 1) // STRETCH)
    again, unit = _count_up(
        table.query_lo[spans[place]] // unit_tokens, (table.query_hi[spans[place]] - 1) // unit_tokens
    )
    place, stretch = place[again], stretch[again]
    position = np.maximum(low_tile[spans[place]], stretch * STRETCH)
    order = np.lexsort((position, unit))
    place, stretch, unit, position = place[order], stretch[order], unit[order], position[order]
    span = spans[place]
    items = np.column_stack(
        [
            np.maximum(table.query_lo[span], unit * unit_tokens),
            np.minimum(table.query_hi[span], (unit + 1) * unit_tokens),
            position,
            np.minimum(high_tile[span], (stretch + 1) * STRETCH) - position,
            table.causal[span],
            first_piece[place],
            position - low_tile[span],
        ]
    )
    return unit, items.astype(np.int32), pieces


def _pieces(table: SpanTable, spans: _Index, own: _Index) -> tuple[IntArray, _Index]:
    """Pieces, and the first one of each of ``spans``: the keys before it in its first tile, then ``own`` of its own."""
    previous = previous_spans(table)
    owner, keys = np.arange(len(spans)), own
    key_lo = table.key_lo[spans].astype(np.int64)
    columns = [(owner, key_lo, keys, table.from_pool[spans])]
    span, missing = spans, table.key_position[spans] % TILE_KEYS
    while (more := np.flatnonzero(missing)).size:
        owner, span = owner[more], previous[span[more]]
        keys = np.minimum(missing[more], table.key_tokens[span])
        missing = missing[more] - keys
        columns.append((owner, table.key_lo[span] + table.key_tokens[span] - keys, keys, table.from_pool[span]))
    owners, *rest = (np.concatenate(parts)[::-1] for parts in zip(*columns, strict=True))
    order = np.argsort(owners, kind="stable")  # reversed above: the furthest span comes first
    pieces = np.column_stack(rest)[order].astype(np.int32)
    return pieces, np.searchsorted(owners[order], np.arange(len(spans)))


def _units(unit: _Index, items: IntArray, query_edges: _Index, *, split: bool) -> tuple[IntArray, IntArray]:
    """Units from the unit of every item, and joins; where they are ``split``, one unit for each stretch."""
    stretch = items[:, 2] // STRETCH * split
    first = np.flatnonzero(np.diff(unit * (stretch.max(initial=0) + 1) + stretch, prepend=-1))
    edges = np.append(first, len(items))
    number = unit[first]
    num_parts = np.bincount(number, minlength=len(query_edges) - 1)
    is_share = num_parts[number] > 1
    share = np.where(is_share, np.cumsum(is_share) - 1, _WHOLE)
    units = np.column_stack([query_edges[number], query_edges[number + 1], edges[:-1], edges[1:], share])
    pairs = np.cumsum(np.append(0, (items[:, 1] - items[:, 0]).astype(np.int64) * items[:, 3]))
    order = np.argsort(-np.diff(pairs[edges]), kind="stable")
    joined = np.flatnonzero(num_parts > 1)
    last = np.cumsum(num_parts[joined])
    joins = np.column_stack([query_edges[joined], query_edges[joined + 1], last - num_parts[joined], last])
    return units[order].astype(np.int32), joins.astype(np.int32)


def _count_up(first: npt.NDArray[np.integer], last: npt.NDArray[np.integer]) -> tuple[_Index, _Index]:
    """All numbers of the ranges ``first`` to ``last``, the last included: the range of each, and the number."""
    count = last.astype(np.int64) - first + 1
    place = np.repeat(np.arange(len(count)), count)
    return place, np.arange(len(place)) - np.repeat(np.cumsum(count) - count - first, count)
