"""Fill the weights of a decoder from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.checkpoint_files import GGUF_HEAD, GGUF_ROTARY_DIVISORS
from engine.errors import CheckpointError
from engine.gguf_codes import code_bits, read_codes
from engine.gguf_file import GgufHeader, GgufTensor
from engine.model_config import ModelConfig
from engine.weight_slots import Part, allocate, check_names, check_shape, slots_by_name
from engine.weights import LayerWeights, ModelWeights
from kernels.weights import CODED_INPUTS, CodedWeight

_LAYER: Final = "blk.{layer}."
_NAMES: Final[Mapping[Part, str]] = {
    Part.EMBEDDING: "token_embd.weight",
    Part.FINAL_NORM: "output_norm.weight",
    Part.HEAD: GGUF_HEAD,
    Part.INPUT_NORM: _LAYER + "attn_norm.weight",
    Part.QUERY: _LAYER + "attn_q.weight",
    Part.KEY: _LAYER + "attn_k.weight",
    Part.VALUE: _LAYER + "attn_v.weight",
    Part.QKV: _LAYER + "attn_qkv.weight",
    Part.QUERY_BIAS: _LAYER + "attn_q.bias",
    Part.KEY_BIAS: _LAYER + "attn_k.bias",
    Part.VALUE_BIAS: _LAYER + "attn_v.bias",
    Part.QUERY_NORM: _LAYER + "attn_q_norm.weight",
    Part.KEY_NORM: _LAYER + "attn_k_norm.weight",
    Part.ATTENTION_OUT: _LAYER + "attn_output.weight",
    Part.ATTENTION_OUT_NORM: _LAYER + "post_attention_norm.weight",
    Part.FEED_FORWARD_NORM: _LAYER + "ffn_norm.weight",
    Part.GATE: _LAYER + "ffn_gate.weight",
    Part.UP: _LAYER + "ffn_up.weight",
    Part.GATE_UP: _LAYER + "ffn_up.weight",
    Part.DOWN: _LAYER + "ffn_down.weight",
    Part.FEED_FORWARD_OUT_NORM: _LAYER + "post_ffw_norm.weight",
}

# What a weight of a layer is put together from, fused in the file or not.
_WEIGHTS: Final[Mapping[str, tuple[Part, ...]]] = {
    "qkv": (Part.QUERY, Part.KEY, Part.VALUE, Part.QKV),
    "attention_out": (Part.ATTENTION_OUT,),
    "gate_up": (Part.GATE, Part.UP),
    "down": (Part.DOWN,),
}

# Rows are dequantised in runs of about this many elements (4 MiB of float32), which keeps the
# temporaries of dequantisation in the processor's cache and out of the peak memory.
_RUN_ELEMENTS: Final = 1 << 20


def load_gguf(header: GgufHeader, config: ModelConfig, dtype: torch.dtype, *, coded: bool) -> ModelWeights:
    """Every tensor of the file, dequantised piece by piece and converted to ``dtype``; norms to float32.

    With ``coded``, weights of layers stay codes wherever all that they are put together from has codes.

    Query and key rows of Llama files stand in the order of the interleaved rotary embedding
    and are put into half-split order.

    Raises:
        CheckpointError: a tensor is missing, not known, of the wrong shape, or in an encoding
            that cannot be dequantised.
    """
    weights = allocate(config, dtype)
    if coded:
        layers = (_for_codes(layer, number, header, dtype) for number, layer in enumerate(weights.layers))
        weights = replace(weights, layers=tuple(layers))
    slots = slots_by_name(weights, config, _NAMES)
    check_names(slots, header.tensors.keys() - {GGUF_ROTARY_DIVISORS}, str(header.path))
    # copy-on-write, because torch wants writable memory; nothing writes
    data = np.memmap(header.path, dtype=np.uint8, mode="c")
    for name, slot in slots.items():
        tensor = header.tensors[name]
        check_shape(name, tensor.shape, slot, str(header.path))
        raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
        rows = _row_order(slot.part, config)
        if isinstance(slot.view, CodedWeight):
            _fill_codes(slot.view, raw, tensor, rows)
            continue
        try:
            _fill(slot.view, raw, tensor, rows)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{header.path}: tensor {name} has encoding {tensor.encoding.name}, which cannot be dequantised"
            ) from error
    return weights


def _for_codes(layer: LayerWeights, number: int, header: GgufHeader, dtype: torch.dtype) -> LayerWeights:
    """The layer with room for codes in place of numbers, where the file has them."""
    room: dict[str, Any] = {}
    for field, parts in _WEIGHTS.items():
        found = [header.tensors.get(_NAMES[part].format(layer=number)) for part in parts]
        bits = [code_bits(tensor.encoding) for tensor in found if tensor is not None]
        if (most := max((b or 0 for b in bits), default=0)) and all(bits):
            rows, inputs = getattr(layer, field).shape
            scales, offsets = torch.empty(2, rows, inputs // CODED_INPUTS)
            codes = torch.empty(rows, inputs, dtype=torch.int8)
            room[field] = CodedWeight(codes=codes, scales=scales, offsets=offsets, bits=most, dtype=dtype)
    return replace(layer, **room)


def _row_order(part: Part, config: ModelConfig) -> Tensor | None:
    """Where each row of the file's tensor belongs; None: where it is."""
    num_heads = {Part.QUERY: config.num_heads, Part.KEY: config.num_kv_heads}.get(part)
    if num_heads is None or not config.stored.interleaved_rotary:
        return None
    return _half_split_rows(num_heads, config.head_dim)


def _fill(slot: Tensor, raw: npt.NDArray[np.uint8], tensor: GgufTensor, rows: Tensor | None) -> None:
    """Write ``tensor`` into ``slot``; row ``i`` of the file goes to ``rows[i]``, by default to ``i``."""
    target = slot if slot.dim() > 1 else slot.unsqueeze(0)
    num_rows, row_elements = target.shape
    raw = raw.reshape(num_rows, -1)
    run = max(1, _RUN_ELEMENTS // row_elements)
    for start in range(0, num_rows, run):
        values = torch.from_numpy(gguf.dequantize(raw[start : start + run], tensor.encoding)).to(target.dtype)
        if rows is None:
            target[start : start + run] = values
        else:
            target[rows[start : start + run]] = values


def _fill_codes(slot: CodedWeight, raw: npt.NDArray[np.uint8], tensor: GgufTensor, rows: Tensor | None) -> None:
    """As :func:`_fill`, of codes."""
    found = read_codes(raw, tensor.encoding)
    for target, values in ((slot.codes, found.codes), (slot.scales, found.scales), (slot.offsets, found.offsets)):
        target[slice(None) if rows is None else rows] = torch.from_numpy(values).view(target.shape)


def _half_split_rows(num_heads: int, head_dim: int) -> Tensor:
    """Where each row of an interleaved query or key matrix belongs in half-split order.

    Interleaved rotation turns rows ``(2i, 2i + 1)`` of a head together, half-split rotation
    ``(i, i + head_dim / 2)``.
    """
    within = torch.arange(head_dim)
    place = within // 2 + (within % 2) * (head_dim // 2)
    return (torch.arange(num_heads)[:, None] * head_dim + place).flatten()
