"""The tensors of a decoder, in the layout that the forward pass reads."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. ``d`` hidden size, ``F`` feed-forward width; weights are ``[out, in]``."""

    input_norm: Tensor  # [d]
    qkv: Tensor  # [(H + 2 H_kv) D, d], rows in the order q, k, v; half-split rotary order
    attention_out: Tensor  # [d, H D]
    post_norm: Tensor  # [d]
    gate_up: Tensor  # [2 F, d], gate first
    down: Tensor  # [d, F]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    embedding: Tensor  # [V, d]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [d]
    head: Tensor  # [V, d]; the embedding itself where the two are tied

    def to(self, device: torch.device) -> ModelWeights:
        """The same weights on ``device``; a tied head stays tied."""
        embedding = self.embedding.to(device)
        return ModelWeights(
            embedding=embedding,
            layers=tuple(
                LayerWeights(**{field.name: getattr(layer, field.name).to(device) for field in fields(layer)})
                for layer in self.layers
            ),
            final_norm=self.final_norm.to(device),
            head=embedding if self.head is self.embedding else self.head.to(device),
        )
