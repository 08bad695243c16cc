"""The layers of ``layers.c`` as one operation."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.api import LastLayerOps, LayerOps, LayersInput, LinearOp, SublayerOp
from kernels.native.attention import LANES, AttentionStruct, attention_struct
from kernels.native.attention_work import AttentionWork
from kernels.native.linear import PlainLayer, StreamLayer
from kernels.native.linear_parts import LayerStruct

_POINTERS = (
    "layers", "last_query", "norm", "turns", "stream", "update", "key_pools", "value_pools", "keep_rows", "keep_slots",
    "read_rows", "hidden",
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
        *((name, ctypes.c_int64) for name in ("num_layers", "rows", "num_kept", "num_read")),
        ("eps", ctypes.c_float),
        ("attend", AttentionStruct),
        ("attend_read", AttentionStruct),
    )


class NativeLayers:
    """All layers of a decoder, with the bits that their operations have one by one.

    Args:
        library: With AMX.
        layers, last: Such that :meth:`takes` says yes to them.
    """

    def __init__(self, library: ctypes.CDLL, layers: Sequence[LayerOps], last: LastLayerOps) -> None:
        self._run = library.run_layers
        self._run.argtypes, self._run.restype = [ctypes.POINTER(_DecoderStep)], ctypes.c_int
        self._held = tuple(layers), last  # their weights are named by address below
        self._shape, self._norm, self._eps = last.shape, last.norm.float().contiguous(), last.eps
        described = [_described(layer, layer.qkv) for layer in layers] + [_described(last, last.key_value)]
        self._layers = (_DecoderLayer * len(described))(*described)
        self._last_query = _struct(last.query)

    @staticmethod
    def takes(layers: Sequence[LayerOps], last: LastLayerOps) -> bool:
        """Whether all were packed by :class:`kernels.native.NativeLinear`, with heads that the attention in C reads."""
        shape, hidden = last.shape, last.norm.shape[0]
        query, key_value = shape.num_heads * shape.head_dim, 2 * shape.num_kv_heads * shape.head_dim
        return (
            shape.head_dim % LANES == 0
            and all(
                replace(layer.shape, window=None) == replace(shape, window=None)
                and _reads_stream(layer.qkv, hidden, query + key_value)
                and _goes_back(layer, query, hidden)
                for layer in layers
            )
            and _reads_stream(last.query, hidden, query)
            and _reads_stream(last.key_value, hidden, key_value)
            and _goes_back(last, query, hidden)
        )

    def __call__(self, step: LayersInput, work: AttentionWork, read_work: AttentionWork) -> Tensor:
        """See :data:`kernels.api.LayersOp`; the caller has checked the step.

        Args:
            work, read_work: Of the plans of the step, for the head counts that all layers have.

        Raises:
            MemoryError: a thread found no memory to work in.
        """
        hidden = torch.empty(step.read_rows.shape[0], self._norm.shape[0])
        turns = (ctypes.c_void_p * (2 * len(step.turns)))(*[table.data_ptr() for turn in step.turns for table in turn])
        tensors = (
            step.stream, step.update, step.key_pools, step.value_pools, step.keep_rows, step.keep_slots,
            step.read_rows, hidden,
        )  # fmt: skip
        strides = 0, 0, 0, step.key_pools.stride(1)  # of queries, keys and values the C code knows its own
        told = _DecoderStep(
            ctypes.addressof(self._layers), ctypes.addressof(self._last_query), self._norm.data_ptr(),
            ctypes.addressof(turns), *[tensor.data_ptr() for tensor in tensors],
            len(self._layers), *[len(rows) for rows in (step.update, step.keep_rows, step.read_rows)], self._eps,
            *[attention_struct([None] * 6, strides, each, self._shape) for each in (work, read_work)],
        )  # fmt: skip
        if self._run(ctypes.byref(told)):
            raise MemoryError("a thread found no memory for the workspace of a layer")
        return hidden


def _struct(op: LinearOp | SublayerOp) -> LayerStruct:
    assert isinstance(op, PlainLayer | StreamLayer), "NativeLayers.takes it"
    return LayerStruct.from_buffer_copy(op.parts.prepared)


def _described(layer: LayerOps | LastLayerOps, first: SublayerOp) -> _DecoderLayer:
    structs = [_struct(op) for op in (first, layer.attention_out, layer.feed_forward)]
    shape = layer.shape
    return _DecoderLayer(*structs, layer.turn, shape.window or 0, shape.scale, shape.soft_cap or 0.0)


def _reads_stream(op: SublayerOp, inputs: int, width: int) -> bool:
    return isinstance(op, StreamLayer) and (op.parts.inputs, op.parts.width) == (inputs, width)


def _goes_back(layer: LayerOps | LastLayerOps, attended: int, hidden: int) -> bool:
    out = layer.attention_out
    fits = isinstance(out, PlainLayer) and (out.parts.inputs, out.parts.width) == (attended, hidden)
    return fits and _reads_stream(layer.feed_forward, hidden, hidden)
