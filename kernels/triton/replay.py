"""Work lists in memory that stays where it is, so that launches can be recorded and replayed.

A list has room for more than a step of its size is likely to need, and the grid of a kernel covers
all of it: what a step leaves over are units without tokens, which write nothing. The number of
partial results is that of the room, too, so the merge is always launched where tiles may be split.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from kernels import checks
from kernels.api import IntArray, KernelInputError, SpanTable
from kernels.triton.metadata import SECTION_INTS, StepMetadata
from kernels.triton.plan import Geometry, WorkList, build

# tiles beyond those that are full: branches that were cut apart
_SPARE_TILES = 16
_ITEMS_PER_UNIT = 16
# the last section, of which only what is used is copied: 64 KiB
_MOST_BLOCK_IDS = 16_384
_NO_TOKENS = (0, 0, -1, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What attention asks of a plan, the same for every step that is written to its memory."""

    num_queries: int
    longest_span: int
    cuts: Mapping[Geometry, StepMetadata]

    @property
    def reach(self) -> checks.SpanReach:
        # what a step reaches in the pool is compared when it is written
        return checks.SpanReach(fresh_rows=self.num_queries, slots=0)

    def cut(self, geometry: Geometry) -> StepMetadata:
        return self.cuts[geometry]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Sections for the work list of one geometry, from ``start`` on."""

    start: int
    geometry: Geometry
    num_queries: int

    @property
    def tiles(self) -> int:
        return min(self.num_queries, -(-self.num_queries // self.geometry.tile_tokens) + _SPARE_TILES)

    @property
    def units(self) -> int:
        # pieces of split tiles are at most the target more than tiles, see kernels.triton.plan
        return self.tiles + self.geometry.target_units

    @property
    def merges(self) -> int:
        # a split tile has at least one piece more
        return min(self.tiles, self.geometry.target_units)

    @property
    def num_partials(self) -> int:
        return self.merges + self.geometry.target_units if self.merges else 0

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of units, items, rows and merges."""
        return (self.units, 8), (self.units * _ITEMS_PER_UNIT, 6), (3, self.num_queries), (self.merges, 4)

    @property
    def starts(self) -> list[int]:
        """Of the four sections, and the end."""
        return list(accumulate((_whole_sections(rows * width) for rows, width in self.shapes), initial=self.start))

    def holds(self, work: WorkList) -> bool:
        needed = len(work.units), len(work.items), len(work.merges), work.num_partials
        rooms = self.units, self.units * _ITEMS_PER_UNIT, self.merges, self.num_partials
        return all(count <= room for count, room in zip(needed, rooms, strict=True))

    def write(self, work: WorkList, into: IntArray) -> None:
        units, items, rows, merges = (
            into[start : start + height * width].reshape(height, width)
            for start, (height, width) in zip(self.starts, self.shapes, strict=False)
        )
        units[: len(work.units)] = work.units
        units[len(work.units) :] = _NO_TOKENS
        items[: len(work.items)] = work.items
        rows[:] = work.rows
        merges[: len(work.merges)] = work.merges
        merges[len(work.merges) :] = 0

    def metadata(self, memory: Tensor, block_ids: Tensor, block_size: int) -> StepMetadata:
        units, items, rows, merges = (
            memory[start : start + height * width].view(height, width)
            for start, (height, width) in zip(self.starts, self.shapes, strict=False)
        )
        return StepMetadata(
            units=units,
            items=items,
            rows=rows,
            block_ids=block_ids,
            merges=merges,
            num_partials=self.num_partials,
            block_size=block_size,
        )


class TritonReplayLayout:
    """Implements :class:`kernels.api.ReplayLayout`: a work list for each geometry, then the block ids of all."""

    def __init__(
        self,
        geometries: Collection[Geometry],
        *,
        num_queries: int,
        longest_span: int,
        block_size: int,
        num_slots: int,
    ) -> None:
        self._num_queries, self._longest_span = num_queries, longest_span
        self._block_size, self._num_slots = block_size, num_slots
        self._rooms: list[_Room] = []
        self._block_ids_at = 0
        for geometry in dict.fromkeys(geometries):
            room = _Room(start=self._block_ids_at, geometry=geometry, num_queries=num_queries)
            self._rooms.append(room)
            self._block_ids_at = room.starts[-1]

    @property
    def num_ints(self) -> int:
        return self._block_ids_at + _MOST_BLOCK_IDS

    def plan(self, memory: Tensor) -> ReplayPlan:
        block_ids = memory[self._block_ids_at :]
        return ReplayPlan(
            num_queries=self._num_queries,
            longest_span=self._longest_span,
            cuts={room.geometry: room.metadata(memory, block_ids, self._block_size) for room in self._rooms},
        )

    def write(self, table: SpanTable, into: IntArray) -> int | None:
        reach = checks.check_spans(table)
        if table.num_queries != self._num_queries:
            raise KernelInputError(f"table: {self._num_queries} query rows wanted, got {table.num_queries}")
        if table.block_size != self._block_size:
            raise KernelInputError(f"table: blocks of {self._block_size} slots wanted, got {table.block_size}")
        if reach.slots > self._num_slots:
            raise KernelInputError(f"table: blocks within {self._num_slots} slots wanted, got {reach.slots}")
        if len(table.block_ids) > _MOST_BLOCK_IDS:
            return None
        for room in self._rooms:
            work = build(table, room.geometry)
            if not room.holds(work):
                return None
            room.write(work, into)
        end = self._block_ids_at + len(table.block_ids)
        into[self._block_ids_at : end] = table.block_ids
        return end


def _whole_sections(ints: int) -> int:
    return -(-ints // SECTION_INTS) * SECTION_INTS
