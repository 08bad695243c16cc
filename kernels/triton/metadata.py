"""Work lists on the device: packed into one buffer, copied once per step and cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.api import IntArray, SpanTable
from kernels.checks import SpanReach
from kernels.triton.plan import Geometry, WorkList, build

# sections start at multiples of 16 int32 = 64 bytes, so every pointer has the alignment
# (16 bytes) that the kernels are compiled for
SECTION_INTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetadata:
    """A :class:`kernels.triton.plan.WorkList` as views of one device buffer."""

    units: Tensor
    items: Tensor
    rows: Tensor
    block_ids: Tensor
    merges: Tensor
    num_partials: int
    block_size: int

    @property
    def num_units(self) -> int:
        return self.units.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """A checked span table, cut for a layer's geometry when the first such layer asks.

    Layers of one geometry share a cut; a model has one, or two when it mixes sliding-window
    and full layers. Belongs to the thread that runs the step.
    """

    table: SpanTable
    reach: SpanReach
    device: torch.device
    _cuts: dict[Geometry, StepMetadata] = field(default_factory=dict)

    @property
    def num_queries(self) -> int:
        return self.table.num_queries

    @property
    def longest_span(self) -> int:
        """Keys of the longest span."""
        return int(self.table.key_tokens.max(initial=0))

    def cut(self, geometry: Geometry) -> StepMetadata:
        if geometry not in self._cuts:
            self._cuts[geometry] = _to_device(build(self.table, geometry), self.table.block_size, self.device)
        return self._cuts[geometry]


def _to_device(work: WorkList, block_size: int, device: torch.device) -> StepMetadata:
    sections = [work.units, work.items, work.rows, work.block_ids, work.merges]
    starts = np.cumsum([0, *(-(-section.size // SECTION_INTS) * SECTION_INTS for section in sections)])
    # pinned memory makes the copy asynchronous; the allocator keeps it until the copy is done
    host = torch.empty(max(int(starts[-1]), 1), dtype=torch.int32, pin_memory=device.type == "cuda")
    for start, section in zip(starts, sections, strict=False):
        _fill(host[start : start + section.size], section)
    packed = host.to(device, non_blocking=True)
    units, items, rows, block_ids, merges = (
        packed[start : start + section.size].view(section.shape)
        for start, section in zip(starts, sections, strict=False)
    )
    return StepMetadata(
        units=units,
        items=items,
        rows=rows,
        block_ids=block_ids,
        merges=merges,
        num_partials=work.num_partials,
        block_size=block_size,
    )


def _fill(view: Tensor, section: IntArray) -> None:
    view.numpy()[:] = section.ravel()
