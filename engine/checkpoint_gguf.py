"""Fill the weights of a decoder from a GGUF file."""

from __future__ import annotations

from typing import Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.checkpoint_files import GGUF_HEAD
from engine.errors import CheckpointError
from engine.gguf_file import GgufHeader, GgufTensor
from engine.model_config import ModelConfig
from engine.weight_slots import TensorNames, allocate, check_names, check_shape
from engine.weights import ModelWeights

_LAYER: Final = "blk.{layer}."
_NAMES: Final = TensorNames(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    head=GGUF_HEAD,
    input_norm=_LAYER + "attn_norm.weight",
    query=_LAYER + "attn_q.weight",
    key=_LAYER + "attn_k.weight",
    value=_LAYER + "attn_v.weight",
    attention_out=_LAYER + "attn_output.weight",
    post_norm=_LAYER + "ffn_norm.weight",
    gate=_LAYER + "ffn_gate.weight",
    up=_LAYER + "ffn_up.weight",
    down=_LAYER + "ffn_down.weight",
)

# Rows are dequantised in runs of about this many elements (4 MiB of float32), which keeps the
# temporaries of dequantisation in the processor's cache and out of the peak memory.
_RUN_ELEMENTS: Final = 1 << 20


def load_gguf(header: GgufHeader, config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Every tensor of the file, dequantised piece by piece and converted to ``dtype``.

    Query and key rows of Llama files stand in the order of the interleaved rotary embedding
    and are put into half-split order.

    Raises:
        CheckpointError: a tensor is missing, not known, of the wrong shape, or in an encoding
            that cannot be dequantised.
    """
    weights, slots = allocate(config, _NAMES, dtype)
    check_names(slots, header.tensors, str(header.path))
    rotary_rows = {_NAMES.query: config.num_heads, _NAMES.key: config.num_kv_heads}
    heads_of = {
        name.format(layer=layer): heads for name, heads in rotary_rows.items() for layer in range(config.num_layers)
    }
    # copy-on-write, because torch wants writable memory; nothing writes
    data = np.memmap(header.path, dtype=np.uint8, mode="c")
    for name, slot in slots.items():
        tensor = header.tensors[name]
        check_shape(name, tensor.shape, slot, str(header.path))
        raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
        try:
            _fill(slot, raw, tensor, _half_split_rows(heads_of[name], config.head_dim) if name in heads_of else None)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{header.path}: tensor {name} has encoding {tensor.encoding.name}, which cannot be dequantised"
            ) from error
    return weights


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
