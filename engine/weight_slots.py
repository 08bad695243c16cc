"""Unfilled weights of a decoder, and the slot in them for each tensor of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model_config import ModelConfig
from engine.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """How a checkpoint format calls its tensors; ``{layer}`` stands for the layer's number."""

    embedding: str
    final_norm: str
    head: str
    input_norm: str
    query: str
    key: str
    value: str
    attention_out: str
    post_norm: str
    gate: str
    up: str
    down: str


def allocate(config: ModelConfig, names: TensorNames, dtype: torch.dtype) -> tuple[ModelWeights, dict[str, Tensor]]:
    """Weights with undefined contents, and views of them by the names of the tensors to copy in.

    Fused weights have one view for each of their parts. With tied embeddings the head is the
    embedding and has no view.
    """

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    hidden, query_rows = config.hidden_size, config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    embedding, final_norm = empty(config.vocab_size, hidden), empty(hidden)
    slots = {names.embedding: embedding, names.final_norm: final_norm}
    layers = []
    for number in range(config.num_layers):
        layer = LayerWeights(
            input_norm=empty(hidden),
            qkv=empty(query_rows + 2 * kv_rows, hidden),
            attention_out=empty(hidden, query_rows),
            post_norm=empty(hidden),
            gate_up=empty(2 * config.intermediate_size, hidden),
            down=empty(hidden, config.intermediate_size),
        )
        query, key, value = torch.tensor_split(layer.qkv, (query_rows, query_rows + kv_rows))
        gate, up = layer.gate_up.chunk(2)
        views = {
            names.input_norm: layer.input_norm,
            names.query: query,
            names.key: key,
            names.value: value,
            names.attention_out: layer.attention_out,
            names.post_norm: layer.post_norm,
            names.gate: gate,
            names.up: up,
            names.down: layer.down,
        }
        slots |= {name.format(layer=number): view for name, view in views.items()}
        layers.append(layer)
    head = embedding
    if not config.tie_word_embeddings:
        head = slots[names.head] = empty(config.vocab_size, hidden)
    return ModelWeights(embedding=embedding, layers=tuple(layers), final_norm=final_norm, head=head), slots


def check_names(wanted: Mapping[str, Tensor], found: Collection[str], source: str) -> None:
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


def check_shape(name: str, found: tuple[int, ...], slot: Tensor, source: str) -> None:
    """Check that a tensor of the checkpoint fits its slot.

    Raises:
        CheckpointError: names the tensor and both shapes.
    """
    if found != tuple(slot.shape):
        raise CheckpointError(
            f"{source}: tensor {name} has shape {list(found)}; the config asks for {list(slot.shape)}"
        )
