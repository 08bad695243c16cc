"""Weights of linear layers: numbers as they are, or the codes that a checkpoint holds of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import torch
from torch import Tensor

CODED_INPUTS: Final = 32
"""How many inputs of an output share a scale and an offset."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodedWeight:
    """A weight ``[out, in]`` of numbers ``scale * code + offset``, worked out in float32 and rounded to ``dtype``.

    Keeping the codes loses nothing and takes a fraction of the memory, which is what a step of few rows spends its
    time on. ``dtype``, ``shape``, ``device`` and ``[rows]`` are those of the weight that it stands for.

    Args:
        codes: ``[out, in]`` int8; with 4 ``bits`` they are 0 to 15.
        scales, offsets: ``[out, in / 32]`` float32.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor
    bits: int
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def has_half_scales(self) -> bool:
        """Whether every scale and offset is a 16-bit float too."""
        return all(torch.equal(numbers.half().float(), numbers) for numbers in (self.scales, self.offsets))

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets where each of them takes no more than it needs."""
        return self.numel() * self.bits // 8 + 2 * self.scales.numel() * (2 if self.has_half_scales else 4)

    def numel(self) -> int:
        return self.codes.numel()

    def dim(self) -> int:
        return self.codes.dim()

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> CodedWeight:
        return replace(self, codes=self.codes[rows], scales=self.scales[rows], offsets=self.offsets[rows])

    def to(self, device: torch.device) -> CodedWeight:
        return replace(
            self, codes=self.codes.to(device), scales=self.scales.to(device), offsets=self.offsets.to(device)
        )

    def dense(self) -> Tensor:
        """The numbers themselves, ``[out, in]`` of ``dtype``."""
        blocks = self.codes.view(len(self), -1, CODED_INPUTS)
        numbers = blocks.float().mul_(self.scales.unsqueeze(-1)).add_(self.offsets.unsqueeze(-1))
        return numbers.view(self.shape).to(self.dtype)


Weight: TypeAlias = Tensor | CodedWeight
"""The weight of a linear layer, ``[out, in]``."""


def dense(weight: Weight) -> Tensor:
    """``weight`` as a tensor, for who cannot multiply by codes."""
    return weight.dense() if isinstance(weight, CodedWeight) else weight
