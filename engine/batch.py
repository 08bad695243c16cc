"""A step as arrays: packed tokens, spans, slots to fill, positions to read; on the host, then on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.prefix_tree import Segment
from engine.scheduler import Step
from engine.step_trie import StepRow, TrieNode
from kernels.api import AttentionPlan, IntArray, SpanTable

SlotArray = npt.NDArray[np.int64]

_ALIGNED = 2  # int64s in 16 bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowReads:
    """Which hidden states belong to a row: ``places[i]`` of the read rows is position ``first + i``."""

    row: StepRow
    first: int
    places: list[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLayout:
    """A step as arrays of the host.

    Args:
        tokens: ``[T]``, packed depth first.
        spans: For all of them; holds their positions.
        read_rows: ``[R]``, ascending packed rows whose final hidden state is wanted.
        keep_rows, keep_slots: ``[K]``, rows that stay in the cache and where.
    """

    tokens: SlotArray
    spans: SpanTable
    read_rows: SlotArray
    keep_rows: SlotArray
    keep_slots: SlotArray
    reads: list[RowReads]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtendBatch:
    """What one forward pass gets: a layout on the device.

    Args:
        tokens, positions: ``[T]`` int64. All tensors are on the engine's device.
        spans: For all layers but the last.
        read_rows: ``[R]`` int64.
        read_spans: The same spans for those rows alone; for the last layer.
        keep_rows, keep_slots: ``[K]`` int64.
    """

    tokens: Tensor
    positions: Tensor
    spans: SpanTable
    read_rows: Tensor
    read_spans: SpanTable
    keep_rows: Tensor
    keep_slots: Tensor
    reads: list[RowReads]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """What one forward pass gets that is replayed: memory that holds one step after the other.

    Args:
        tokens, positions, read_rows, keep_rows, keep_slots: ``[T]`` int64, with ``T`` above what any of
            the steps has; what is left over repeats one row, and goes to a slot that nobody reads.
        plan: For all layers; whatever is in its memory.
    """

    tokens: Tensor
    positions: Tensor
    read_rows: Tensor
    keep_rows: Tensor
    keep_slots: Tensor
    plan: AttentionPlan


@dataclass(slots=True)
class _SpanList:
    """Span columns while they grow."""

    rows: list[tuple[int, int, int, int, int, bool, bool]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def fresh(self, queries: tuple[int, int], first: int, tokens: int, position: int, *, causal: bool) -> None:
        if queries[0] < queries[1] and tokens:
            self.rows.append((*queries, first, tokens, position, False, causal))

    def pool(self, queries: tuple[int, int], segment: Segment, position: int, block_size: int) -> None:
        first = len(self.blocks) * block_size + segment.offset
        self.blocks.extend(segment.block_ids)
        self.rows.append((*queries, first, segment.length, position, True, False))

    def table(self, positions: IntArray, block_size: int) -> SpanTable:
        columns = np.array(self.rows, dtype=np.int32).reshape(-1, 7).T
        from_pool, causal = columns[5:].astype(np.bool_)
        return SpanTable(
            positions=positions,
            query_lo=columns[0],
            query_hi=columns[1],
            key_lo=columns[2],
            key_tokens=columns[3],
            key_position=columns[4],
            from_pool=from_pool,
            causal=causal,
            block_ids=np.array(self.blocks, dtype=np.int32),
            block_size=block_size,
        )


def lay_out(step: Step, block_size: int) -> StepLayout:
    """Write down what a step computes, keeps and reads."""
    nodes = step.trie.nodes
    spans = _SpanList()
    for node in nodes:
        _add_spans(spans, node, block_size)
    positions = [np.arange(node.fresh_low, node.high, dtype=np.int32) for node in nodes]
    reads, wanted = _reads(step)
    keep_rows, keep_slots = _kept(step, block_size)
    return StepLayout(
        tokens=np.concatenate([node.row.tokens[node.fresh_low : node.high] for node in nodes], dtype=np.int64),
        spans=spans.table(np.concatenate(positions), block_size),
        read_rows=wanted,
        keep_rows=keep_rows,
        keep_slots=keep_slots,
        reads=reads,
    )


def on_device(layout: StepLayout, device: torch.device) -> ExtendBatch:
    """Take a step to the device; once per step, reused by every layer."""
    positions = layout.spans.positions.astype(np.int64)
    columns = to_device([layout.tokens, positions, layout.read_rows, layout.keep_rows, layout.keep_slots], device)
    return ExtendBatch(
        tokens=columns[0],
        positions=columns[1],
        spans=layout.spans,
        read_rows=columns[2],
        read_spans=_for_rows(layout.spans, layout.read_rows),
        keep_rows=columns[3],
        keep_slots=columns[4],
        reads=layout.reads,
    )


def to_device(columns: list[SlotArray], device: torch.device) -> tuple[Tensor, ...]:
    """The arrays as dense tensors of ``device``, with one copy that the host does not wait for; on a CPU, without one.

    Each starts at a multiple of 16 bytes whatever the lengths: a kernel is compiled anew for a
    pointer that is aligned less than the one before it.
    """
    if device.type == "cpu":
        return tuple([torch.from_numpy(column) for column in columns])
    starts = np.cumsum([0, *(-(-column.size // _ALIGNED) * _ALIGNED for column in columns)])
    joined = torch.empty(int(starts[-1]), dtype=torch.int64, pin_memory=device.type == "cuda")
    for start, column in zip(starts, columns, strict=False):
        joined[start : start + column.size] = torch.from_numpy(column.ravel())
    joined = joined.to(device, non_blocking=True)
    return tuple(
        joined[start : start + column.size].view(column.shape) for start, column in zip(starts, columns, strict=False)
    )


def _reads(step: Step) -> tuple[list[RowReads], SlotArray]:
    """What each row reads, and the packed rows that are read at all, ascending."""
    readers = [
        (row, step.trie.packed_places(end, row.state.first_unread, row.end))
        for row, end in zip(step.rows, step.trie.ends, strict=True)
        if row.end > row.state.first_unread
    ]
    packed = [place for _, places in readers for place in places]
    wanted = np.array(packed, dtype=np.int64)
    places = iter(range(len(packed)))
    # rows are in order of the trie, so their places ascend but where two rows read the same
    if any(place >= later for place, later in pairwise(packed)):
        wanted, among = np.unique(wanted, return_inverse=True)
        places = iter(among.tolist())
    reads = [
        RowReads(row=row, first=row.state.first_unread, places=list(islice(places, len(own)))) for row, own in readers
    ]
    return reads, wanted


def _add_spans(spans: _SpanList, node: TrieNode, block_size: int) -> None:
    below = (node.packed, node.packed_end)
    if below[0] < below[1]:
        for segment, position in _cached_segments(node, block_size):
            spans.pool(below, segment, position, block_size)
    own = node.packed + node.num_fresh
    spans.fresh((node.packed, own), node.packed, node.num_fresh, node.fresh_low, causal=True)
    spans.fresh((own, node.packed_end), node.packed, node.num_fresh, node.fresh_low, causal=False)


def _cached_segments(node: TrieNode, block_size: int) -> Iterator[tuple[Segment, int]]:
    """The cached part ``[low, fresh_low)`` of a node, in as few pieces as its blocks allow."""
    blocks: list[int] = []
    offset = length = 0
    start = node.low
    for cached in node.row.match.between(node.low, node.fresh_low):
        low, high = max(cached.start, node.low), min(cached.end, node.fresh_low)
        part = cached.segment.part(low - cached.start, high - cached.start, block_size)
        used = (offset + length) % block_size  # of the last block; 0: all
        if blocks and used == part.offset and (used == 0 or blocks[-1] == part.block_ids[0]):
            blocks += part.block_ids[used > 0 :]
            length += part.length
            continue
        if blocks:
            yield Segment(tuple(blocks), offset, length), start
        blocks, offset, length, start = list(part.block_ids), part.offset, part.length, low
    if blocks:
        yield Segment(tuple(blocks), offset, length), start


def _kept(step: Step, block_size: int) -> tuple[SlotArray, SlotArray]:
    if not step.segments:
        none = np.empty(0, dtype=np.int64)
        return none, none
    rows: list[SlotArray] = []
    slots: list[SlotArray] = []
    of_block = np.arange(block_size)
    for place, segment in zip(step.growth_places, step.segments, strict=True):
        rows.append(np.arange(place, place + segment.length))
        of_blocks = np.add.outer(np.array(segment.block_ids) * block_size, of_block).ravel()
        slots.append(of_blocks[segment.offset : segment.offset + segment.length])
    return np.concatenate(rows), np.concatenate(slots)


def _for_rows(table: SpanTable, rows: SlotArray) -> SpanTable:
    """The spans with only the query rows ``rows`` (ascending) left, renumbered from 0."""
    low, high = rows.searchsorted((table.query_lo, table.query_hi)).astype(np.int32)
    some = low < high
    # all are for a row alone, and a slice copies nothing
    kept = slice(None) if np.count_nonzero(some) == len(some) else some
    return SpanTable(
        positions=table.positions[rows],
        query_lo=low[kept],
        query_hi=high[kept],
        key_lo=table.key_lo[kept],
        key_tokens=table.key_tokens[kept],
        key_position=table.key_position[kept],
        from_pool=table.from_pool[kept],
        causal=table.causal[kept],
        block_ids=table.block_ids,
        block_size=table.block_size,
    )
