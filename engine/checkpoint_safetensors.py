"""Fill the weights of a decoder from safetensors files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from engine.checkpoint_files import SafetensorsFiles
from engine.errors import CheckpointError
from engine.model_config import ModelConfig
from engine.weight_slots import Part, Slot, allocate, check_names, check_shape, slots_by_name
from engine.weights import ModelWeights

_LAYER: Final = "model.layers.{layer}."
_NAMES: Final[Mapping[Part, str]] = {
    Part.EMBEDDING: "model.embed_tokens.weight",
    Part.FINAL_NORM: "model.norm.weight",
    Part.HEAD: "lm_head.weight",
    Part.INPUT_NORM: _LAYER + "input_layernorm.weight",
    Part.QUERY: _LAYER + "self_attn.q_proj.weight",
    Part.KEY: _LAYER + "self_attn.k_proj.weight",
    Part.VALUE: _LAYER + "self_attn.v_proj.weight",
    Part.QKV: _LAYER + "self_attn.qkv_proj.weight",
    Part.QUERY_BIAS: _LAYER + "self_attn.q_proj.bias",
    Part.KEY_BIAS: _LAYER + "self_attn.k_proj.bias",
    Part.VALUE_BIAS: _LAYER + "self_attn.v_proj.bias",
    Part.QUERY_NORM: _LAYER + "self_attn.q_norm.weight",
    Part.KEY_NORM: _LAYER + "self_attn.k_norm.weight",
    Part.ATTENTION_OUT: _LAYER + "self_attn.o_proj.weight",
    Part.ATTENTION_OUT_BIAS: _LAYER + "self_attn.o_proj.bias",
    Part.FEED_FORWARD_NORM: _LAYER + "post_attention_layernorm.weight",
    Part.GATE: _LAYER + "mlp.gate_proj.weight",
    Part.UP: _LAYER + "mlp.up_proj.weight",
    Part.GATE_UP: _LAYER + "mlp.gate_up_proj.weight",
    Part.DOWN: _LAYER + "mlp.down_proj.weight",
}
# With four norms in a layer the name of the second changes hands.
_FOUR_NORMS: Final[Mapping[Part, str]] = {
    Part.ATTENTION_OUT_NORM: _LAYER + "post_attention_layernorm.weight",
    Part.FEED_FORWARD_NORM: _LAYER + "pre_feedforward_layernorm.weight",
    Part.FEED_FORWARD_OUT_NORM: _LAYER + "post_feedforward_layernorm.weight",
}
# Where a model of several parts keeps its decoder, in the names of older and of newer versions of transformers.
_INNER_PREFIXES: Final = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
)
# Its parts that see images. They do nothing for text and are left unread.
_IMAGE_PREFIXES: Final = tuple(
    outer + part for outer in ("", "model.") for part in ("vision_tower.", "multi_modal_projector.")
)
_HEAD: Final = _NAMES[Part.HEAD]
_EMBEDDING: Final = _NAMES[Part.EMBEDDING]

# A buffer that old versions of transformers saved; it follows from the config.
_DERIVED: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

_DTYPES: Final = ("F64", "F32", "F16", "BF16")


def hf_slots(weights: ModelWeights, config: ModelConfig) -> dict[str, Slot]:
    """The slots of ``weights`` by the names that ``transformers`` gives to their tensors."""
    return slots_by_name(weights, config, {**_NAMES, **_FOUR_NORMS} if config.output_norms else _NAMES)


def load_safetensors(files: SafetensorsFiles, config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Every tensor of the files, converted one by one to ``dtype``; norms to float32.

    Of a model with other parts only the decoder is read. A file that ties head and embedding and
    still holds a head is accepted if the two are equal bit for bit; which of them is meant cannot
    be told if they are not.

    Raises:
        CheckpointError: a file is cut short, or a tensor is missing, not known, in two shards,
            in another shard than the index says, or of the wrong shape or type.
    """
    weights = allocate(config, dtype)
    slots = hf_slots(weights, config)
    with ExitStack() as stack:
        shards = {path: stack.enter_context(_opened(path)) for path in files.shards}
        shard_of = _tensors(shards, files)
        stored_as = _decoder_names(shard_of, config, str(files.config.parent))
        repeated_head = config.tie_word_embeddings and _HEAD in stored_as
        if repeated_head:
            _check_same(shards, shard_of, stored_as)
        check_names(slots, stored_as.keys() - ({_HEAD} if repeated_head else set()), str(files.config.parent))
        for name, slot in slots.items():
            stored_name = stored_as[name]
            path = shard_of[stored_name]
            stored = shards[path].get_slice(stored_name)
            check_shape(stored_name, tuple(stored.get_shape()), slot, str(path))
            if (kind := stored.get_dtype()) not in _DTYPES:
                raise CheckpointError(f"{path}: tensor {stored_name} has type {kind}; supported: {', '.join(_DTYPES)}")
            slot.tensor.copy_(shards[path].get_tensor(stored_name))
            if slot.part.is_norm:
                slot.tensor.add_(config.stored.norm_offset)
    return weights


def decoder_name(name: str, config: ModelConfig) -> str | None:
    """What ``transformers`` calls this tensor or module in a decoder on its own; None: it belongs to another part."""
    if config.stored.among_other_parts:
        if name.startswith(_IMAGE_PREFIXES):
            return None
        for outer, inner in _INNER_PREFIXES:
            if name.startswith(outer):
                return inner + name.removeprefix(outer)
    return name


def _decoder_names(stored: Iterable[str], config: ModelConfig, source: str) -> dict[str, str]:
    """The names under which the files hold the tensors of the decoder, by their names in a decoder on its own."""
    found: dict[str, str] = {}
    for name in stored:
        inner = decoder_name(name, config)
        if inner is None or _DERIVED.fullmatch(inner):
            continue
        if inner in found:
            raise CheckpointError(f"{source} holds both {found[inner]} and {name}, which are the same tensor")
        found[inner] = name
    return found


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
    return found


def _check_same(shards: Mapping[Path, Any], shard_of: Mapping[str, Path], stored_as: Mapping[str, str]) -> None:
    if _EMBEDDING not in stored_as:
        return  # reported with the other missing tensors
    names = stored_as[_HEAD], stored_as[_EMBEDDING]
    head, embedding = (shards[shard_of[name]].get_tensor(name) for name in names)
    if head.dtype != embedding.dtype or not torch.equal(head, embedding):
        raise CheckpointError(
            f"{shard_of[names[0]]}: {names[0]} differs from {names[1]}, "
            "but tie_word_embeddings is true in config.json; set it to false if the head is meant"
        )
