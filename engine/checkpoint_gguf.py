"""Fill the weights of a decoder from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.checkpoint_files import GGUF_HEAD, GGUF_ROTARY_DIVISORS
from engine.errors import CheckpointError
from engine.gguf_file import GgufHeader, GgufTensor
from engine.model_config import ModelConfig
from engine.weight_slots import Part, allocate, check_names, check_shape, slots_by_name
from engine.weights import ModelWeights

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

# Rows are dequantised in runs of about this many elements (4 MiB of float32), which keeps the
# temporaries of dequantisation in the processor's cache and out of the peak memory.
_RUN_ELEMENTS: Final = 1 << 20


def load_gguf(header: GgufHeader, config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Every tensor of the file, dequantised piece by piece and converted to ``dtype``; norms to float32.

    Query and key rows of Llama files stand in the order of the interleaved rotary embedding
    and are put into half-split order.

    Raises:
        CheckpointError: a tensor is missing, not known, of the wrong shape, or in an encoding
            that cannot be dequantised.
    """
    weights = allocate(config, dtype)
    slots = slots_by_name(weights, config, _NAMES)
    check_names(slots, header.tensors.keys() - {GGUF_ROTARY_DIVISORS}, str(header.path))
    # copy-on-write, because torch wants writable memory; nothing writes
    data = np.memmap(header.path, dtype=np.uint8, mode="c")
    for name, slot in slots.items():
        tensor = header.tensors[name]
        check_shape(name, tensor.shape, slot, str(header.path))
        raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
        try:
            _fill(slot.view, raw, tensor, _row_order(slot.part, config))
        except NotImplementedError as error:
            raise CheckpointError(
                f"{header.path}: tensor {name} has encoding {tensor.encoding.name}, which cannot be dequantised"
            ) from error
    return weights


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


def _half_split_rows(num_heads: int, head_dim: int) -> Tensor:
    """Where each row of an interleaved query or key matrix belongs in half-split order.

    Interleaved rotation turns rows ``(2i, 2i + 1)`` of a head together, half-split rotation
    ``(i, i + head_dim / 2)``.
    """
    within = torch.arange(head_dim)
    place = within // 2 + (within % 2) * (head_dim // 2)
    return (torch.arange(num_heads)[:, None] * head_dim + place).flatten()
