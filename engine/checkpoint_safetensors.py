"""Fill the weights of a decoder from safetensors files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from engine.checkpoint_files import SafetensorsFiles
from engine.errors import CheckpointError
from engine.model_config import ModelConfig
from engine.weight_slots import TensorNames, allocate, check_names, check_shape
from engine.weights import ModelWeights

_LAYER: Final = "model.layers.{layer}."
_NAMES: Final = TensorNames(
    embedding="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    input_norm=_LAYER + "input_layernorm.weight",
    query=_LAYER + "self_attn.q_proj.weight",
    key=_LAYER + "self_attn.k_proj.weight",
    value=_LAYER + "self_attn.v_proj.weight",
    attention_out=_LAYER + "self_attn.o_proj.weight",
    post_norm=_LAYER + "post_attention_layernorm.weight",
    gate=_LAYER + "mlp.gate_proj.weight",
    up=_LAYER + "mlp.up_proj.weight",
    down=_LAYER + "mlp.down_proj.weight",
)

# A buffer that old versions of transformers saved; it follows from the config.
_DERIVED: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

_DTYPES: Final = ("F64", "F32", "F16", "BF16")


def load_safetensors(files: SafetensorsFiles, config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Every tensor of the files, converted one by one to ``dtype``.

    A file that ties head and embedding and still holds a head is accepted if the two are equal
    bit for bit; which of them is meant cannot be told if they are not.

    Raises:
        CheckpointError: a file is cut short, or a tensor is missing, not known, in two shards,
            in another shard than the index says, or of the wrong shape or type.
    """
    weights, slots = allocate(config, _NAMES, dtype)
    with ExitStack() as stack:
        shards = {path: stack.enter_context(_opened(path)) for path in files.shards}
        shard_of = _tensors(shards, files)
        repeated_head = config.tie_word_embeddings and _NAMES.head in shard_of
        if repeated_head:
            _check_same(shards, shard_of)
        check_names(slots, shard_of.keys() - ({_NAMES.head} if repeated_head else set()), str(files.config.parent))
        for name, slot in slots.items():
            path = shard_of[name]
            stored = shards[path].get_slice(name)
            check_shape(name, tuple(stored.get_shape()), slot, str(path))
            if (kind := stored.get_dtype()) not in _DTYPES:
                raise CheckpointError(f"{path}: tensor {name} has type {kind}; supported: {', '.join(_DTYPES)}")
            slot.copy_(shards[path].get_tensor(name))
    return weights


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise CheckpointError(f"{path} ({size:,} bytes) is cut short or no safetensors file: {error}") from error


def _tensors(shards: Mapping[Path, Any], files: SafetensorsFiles) -> dict[str, Path]:
    """Where each tensor lies, by what the shards hold, proven equal to what the index says."""
    found: dict[str, Path] = {}
    for path, shard in shards.items():
        for name in shard.keys():  # noqa: SIM118 - not a mapping
            if name in found:
                raise CheckpointError(f"tensor {name} is in both {found[name]} and {path}")
            found[name] = path
    for name, path in (files.shard_of or {}).items():
        if found.get(name) != path:
            raise CheckpointError(f"{path} does not hold tensor {name}, which {files.index} lists for it")
    return {name: path for name, path in found.items() if not _DERIVED.fullmatch(name)}


def _check_same(shards: Mapping[Path, Any], shard_of: Mapping[str, Path]) -> None:
    if _NAMES.embedding not in shard_of:
        return  # reported with the other missing tensors
    head, embedding = (shards[shard_of[name]].get_tensor(name) for name in (_NAMES.head, _NAMES.embedding))
    if head.dtype != embedding.dtype or not torch.equal(head, embedding):
        raise CheckpointError(
            f"{shard_of[_NAMES.head]}: {_NAMES.head} differs from {_NAMES.embedding}, "
            "but tie_word_embeddings is true in config.json; set it to false if the head is meant"
        )
