"""What the C code is told of a layer, and how weights are packed for it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from kernels.api import Activation
from kernels.weights import CODED_INPUTS, CodedWeight

TILE = 32
"""Outputs of a panel, and inputs of a step along it."""

GATES: dict[Activation, int] = {"silu": 1, "gelu_tanh": 2}
"""What the C code calls them."""

INT8 = 5
"""The coding of a weight that is multiplied in 8 bits."""

_POINTERS = ("stream", "copies", "x", "norm", "first", "second", "bias", "out")
_SIZES = ("rows", "inputs", "inner", "out_width", "x_stride", "gate", "first_coding", "second_coding")


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the layout of ``weights.h``."""

    memory: Tensor
    coding: int = 0  # numbers; else an index into the codings there


def coding_of(weight: CodedWeight) -> tuple[int, int]:
    """How the codes of ``weight`` are packed, and in how many bytes for 32 inputs of 32 outputs."""
    halves = weight.has_half_scales
    code_bytes = TILE * CODED_INPUTS * weight.bits // 8
    return (1 if weight.bits == 4 else 3) + (not halves), code_bytes + 2 * TILE * (2 if halves else 4)


class LayerStruct(ctypes.Structure):
    """``layer`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("eps", ctypes.c_float),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerParts:
    """What a layer keeps. Weights are packed; of a feed-forward part ``first`` is gate and up, ``inner`` wide each."""

    first: PackedWeight
    inputs: int
    width: int  # outputs
    bias: Tensor | None = None  # [width] float32
    norm: Tensor | None = None  # [in] float32
    eps: float = 0.0
    second: PackedWeight | None = None
    inner: int = 0
    gate: int = 0

    @cached_property
    def prepared(self) -> bytes:
        """What the C code is told of the layer, all but the rows that come and go."""
        first, second = self.first, self.second
        tensors = self.norm, first.memory, None if second is None else second.memory, self.bias
        norm, first_at, second_at, bias = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        layer = LayerStruct(
            norm=norm, first=first_at, second=second_at, bias=bias, inputs=self.inputs,
            inner=self.inner, out_width=self.width, gate=self.gate, eps=self.eps,
            first_coding=first.coding, second_coding=0 if second is None else second.coding,
        )  # fmt: skip
        return bytes(layer)
