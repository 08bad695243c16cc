"""Unfilled weights of a decoder, and the slot in them for each tensor of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model_config import ModelConfig
from engine.weights import LayerWeights, ModelWeights
from kernels.weights import Weight


class Part(Enum):
    """What a tensor of a checkpoint is, whatever the format calls it."""

    EMBEDDING = auto()
    HEAD = auto()
    FINAL_NORM = auto()
    INPUT_NORM = auto()
    QUERY = auto()
    KEY = auto()
    VALUE = auto()
    QKV = auto()
    QUERY_BIAS = auto()
    KEY_BIAS = auto()
    VALUE_BIAS = auto()
    QUERY_NORM = auto()
    KEY_NORM = auto()
    ATTENTION_OUT = auto()
    ATTENTION_OUT_BIAS = auto()
    ATTENTION_OUT_NORM = auto()
    FEED_FORWARD_NORM = auto()
    GATE = auto()
    UP = auto()
    GATE_UP = auto()
    DOWN = auto()
    FEED_FORWARD_OUT_NORM = auto()

    @property
    def is_norm(self) -> bool:
        return self.name.endswith("_NORM")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor of a checkpoint goes: ``view`` is all of a weight or some of its rows."""

    part: Part
    view: Weight

    @property
    def tensor(self) -> Tensor:
        """The view, of weights that are not kept as codes."""
        assert isinstance(self.view, Tensor), "numbers go to weights that were allocated for numbers"
        return self.view


def allocate(config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Weights with undefined contents. With tied embeddings the head is the embedding."""
    embedding = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_empty_layer(config, dtype) for _ in config.layers),
        final_norm=torch.empty(config.hidden_size),
        head=embedding if config.tie_word_embeddings else torch.empty_like(embedding),
    )


def slots_by_name(weights: ModelWeights, config: ModelConfig, names: Mapping[Part, str]) -> dict[str, Slot]:
    """The slots of all tensors that a checkpoint holds, by their names in its format.

    Args:
        names: ``{layer}`` stands for the layer's number. Must name every part that the form in
            which the checkpoint is stored has.
    """
    parts: dict[Part, Weight] = {Part.EMBEDDING: weights.embedding, Part.FINAL_NORM: weights.final_norm}
    if not config.tie_word_embeddings:
        parts[Part.HEAD] = weights.head
    slots = {names[part]: Slot(part, view) for part, view in parts.items()}
    for number, layer in enumerate(weights.layers):
        for part, view in _layer_parts(layer, config).items():
            slots[names[part].format(layer=number)] = Slot(part, view)
    return slots


def check_names(wanted: Mapping[str, Slot], found: Collection[str], source: str) -> None:
    """Check that the checkpoint holds a tensor for every slot and no other.

    Raises:
        CheckpointError: names up to three of the tensors that are missing or have no use.
    """
    for problem, names in (
        ("lacks tensors that the model needs", wanted.keys() - set(found)),
        ("holds tensors that the model has no use for", set(found) - wanted.keys()),
    ):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise CheckpointError(f"{source} {problem}: {shown}")


def check_shape(name: str, found: tuple[int, ...], slot: Slot, source: str) -> None:
    """Check that a tensor of the checkpoint fits its slot.

    Raises:
        CheckpointError: names the tensor and both shapes.
    """
    if found != tuple(slot.view.shape):
        raise CheckpointError(
            f"{source}: tensor {name} has shape {list(found)}; the config asks for {list(slot.view.shape)}"
        )


def _empty_layer(config: ModelConfig, dtype: torch.dtype) -> LayerWeights:
    hidden, query_rows = config.hidden_size, config.num_heads * config.head_dim
    qkv_rows = query_rows + 2 * config.num_kv_heads * config.head_dim

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def norm(size: int, *, present: bool) -> Tensor | None:
        return torch.empty(size) if present else None

    return LayerWeights(
        input_norm=torch.empty(hidden),
        qkv=empty(qkv_rows, hidden),
        attention_out=empty(hidden, query_rows),
        feed_forward_norm=torch.empty(hidden),
        gate_up=empty(2 * config.intermediate_size, hidden),
        down=empty(hidden, config.intermediate_size),
        qkv_bias=empty(qkv_rows) if config.qkv_bias else None,
        attention_out_bias=empty(hidden) if config.attention_out_bias else None,
        query_norm=norm(config.head_dim, present=config.query_key_norm),
        key_norm=norm(config.head_dim, present=config.query_key_norm),
        attention_out_norm=norm(hidden, present=config.output_norms),
        feed_forward_out_norm=norm(hidden, present=config.output_norms),
    )


def _layer_parts(layer: LayerWeights, config: ModelConfig) -> dict[Part, Weight]:
    """Views of what a checkpoint holds of one layer."""
    cuts = (config.num_heads * config.head_dim, (config.num_heads + config.num_kv_heads) * config.head_dim)
    parts: dict[Part, Weight | None] = {
        Part.INPUT_NORM: layer.input_norm,
        Part.ATTENTION_OUT: layer.attention_out,
        Part.FEED_FORWARD_NORM: layer.feed_forward_norm,
        Part.DOWN: layer.down,
        Part.QUERY_NORM: layer.query_norm,
        Part.KEY_NORM: layer.key_norm,
        Part.ATTENTION_OUT_BIAS: layer.attention_out_bias,
        Part.ATTENTION_OUT_NORM: layer.attention_out_norm,
        Part.FEED_FORWARD_OUT_NORM: layer.feed_forward_out_norm,
    }
    if config.stored.fused:
        parts |= {Part.QKV: layer.qkv, Part.GATE_UP: layer.gate_up}
    else:
        first, second = cuts
        parts |= {Part.QUERY: layer.qkv[:first], Part.KEY: layer.qkv[first:second], Part.VALUE: layer.qkv[second:]}
        width = config.intermediate_size
        parts |= {Part.GATE: layer.gate_up[:width], Part.UP: layer.gate_up[width:]}
    if layer.qkv_bias is not None:
        views = torch.tensor_split(layer.qkv_bias, cuts)
        parts |= zip((Part.QUERY_BIAS, Part.KEY_BIAS, Part.VALUE_BIAS), views, strict=True)
    return {part: view for part, view in parts.items() if view is not None}
