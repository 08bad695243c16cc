"""The layers of ``layers.c`` as one operation."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.api import AttentionShape, LayerOps, LayersInput
from kernels.native.attention import LANES, AttentionStruct, attention_struct
from kernels.native.attention_work import AttentionWork
from kernels.native.linear import PlainLayer, StreamLayer
from kernels.native.linear_parts import LayerStruct

_POINTERS = (
    "layers", "turns", "stream", "update", "qkv", "attended", "key_pools", "value_pools", "keep_rows", "keep_slots",
)  # fmt: skip


class _DecoderLayer(ctypes.Structure):
    """``decoder_layer`` of the C source."""

    _fields_ = (
        *((name, LayerStruct) for name in ("qkv", "attention_out", "feed_forward")),
        *((name, ctypes.c_int64) for name in ("turn", "window")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    )


class _DecoderStep(ctypes.Structure):
    """``decoder_step`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("num_layers", "rows", "num_kept")),
        ("attend", AttentionStruct),
    )


class NativeLayers:
    """Layers that follow each other, with the bits that their operations have one by one.

    Args:
        library: With AMX.
        layers: Such that :meth:`takes` says yes to them.
    """

    def __init__(self, library: ctypes.CDLL, layers: Sequence[LayerOps]) -> None:
        self._run = library.run_layers
        self._run.argtypes, self._run.restype = [ctypes.POINTER(_DecoderStep)], ctypes.c_int
        self._held = tuple(layers)  # their weights are named by address below
        self._shape = layers[0].shape
        self._layers = (_DecoderLayer * len(layers))(*[_described(layer) for layer in layers])
        self._width = (self._shape.num_heads + 2 * self._shape.num_kv_heads) * self._shape.head_dim

    @staticmethod
    def takes(layers: Sequence[LayerOps]) -> bool:
        """Whether all were packed by :class:`kernels.native.NativeLinear`, with heads that the attention in C reads."""
        return bool(layers) and all(_fits(layer, layers[0].shape) for layer in layers)

    @property
    def hidden_size(self) -> int:
        inputs: int = self._layers[0].qkv.inputs
        return inputs

    def __call__(self, step: LayersInput, work: AttentionWork) -> Tensor:
        """See :data:`kernels.api.LayersOp`; the caller has checked the step.

        Args:
            work: Of the plan of the step, for the head counts that all layers have.

        Raises:
            MemoryError: a thread found no memory to work in.
        """
        rows, shape = step.update.shape[0], self._shape
        qkv = torch.empty(rows, self._width, dtype=torch.bfloat16)
        attended = torch.empty(rows, shape.num_heads * shape.head_dim, dtype=torch.bfloat16)
        turns = (ctypes.c_void_p * (2 * len(step.turns)))(*[table.data_ptr() for turn in step.turns for table in turn])
        tensors = (
            step.stream, step.update, qkv, attended, step.key_pools, step.value_pools, step.keep_rows, step.keep_slots,
        )  # fmt: skip
        strides = self._width, self._width, self._width, step.key_pools.stride(1)
        told = _DecoderStep(
            ctypes.addressof(self._layers), ctypes.addressof(turns), *[tensor.data_ptr() for tensor in tensors],
            len(self._held), rows, step.keep_rows.shape[0], attention_struct([None] * 6, strides, work, shape),
        )  # fmt: skip
        if self._run(ctypes.byref(told)):
            raise MemoryError("a thread found no memory for the workspace of a layer")
        return step.update


def _fits(layer: LayerOps, first: AttentionShape) -> bool:
    qkv, out, feed_forward, shape = layer.qkv, layer.attention_out, layer.feed_forward, layer.shape
    if not (isinstance(qkv, StreamLayer) and isinstance(out, PlainLayer) and isinstance(feed_forward, StreamLayer)):
        return False
    attended, hidden = shape.num_heads * shape.head_dim, qkv.parts.inputs
    return (
        shape.head_dim % LANES == 0
        and replace(shape, window=None) == replace(first, window=None)
        and qkv.parts.width == attended + 2 * shape.num_kv_heads * shape.head_dim
        and (out.parts.inputs, out.parts.width) == (attended, hidden)
        and (feed_forward.parts.inputs, feed_forward.parts.width) == (hidden, hidden)
    )


def _described(layer: LayerOps) -> _DecoderLayer:
    ops = layer.qkv, layer.attention_out, layer.feed_forward
    structs = [
        LayerStruct.from_buffer_copy(op.parts.prepared) for op in ops if isinstance(op, PlainLayer | StreamLayer)
    ]
    shape = layer.shape
    return _DecoderLayer(*structs, layer.turn, shape.window or 0, shape.scale, shape.soft_cap or 0.0)
