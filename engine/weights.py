"""The tensors of a decoder, in the layout that the forward pass reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from kernels.weights import CodedWeight, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. ``d`` hidden size, ``F`` feed-forward width; weights are ``[out, in]``.

    A weight may be the codes of the checkpoint, which stand for numbers of the dtype of the rest.
    Norm weights are float32 whatever the dtype of the rest: Gemma's are 1 plus what was trained,
    a sum that bfloat16 would round. What a family has not is None.
    """

    input_norm: Tensor  # [d] float32
    qkv: Weight  # [(H + 2 H_kv) D, d], rows in the order q, k, v; half-split rotary order
    attention_out: Weight  # [d, H D]
    feed_forward_norm: Tensor  # [d] float32
    gate_up: Weight  # [2 F, d], gate first
    down: Weight  # [d, F]
    qkv_bias: Tensor | None = None  # [(H + 2 H_kv) D]
    attention_out_bias: Tensor | None = None  # [d]
    query_norm: Tensor | None = None  # [D] float32
    key_norm: Tensor | None = None  # [D] float32
    attention_out_norm: Tensor | None = None  # [d] float32
    feed_forward_out_norm: Tensor | None = None  # [d] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    embedding: Tensor  # [V, d]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [d] float32
    head: Tensor  # [V, d]; the embedding itself where the two are tied

    def num_bytes(self, *, as_codes: bool, int8: bool = False) -> int:
        """Bytes of all weights, a tied head counted once.

        Args:
            as_codes: Of codes where there are some, else numbers.
            int8: Those of feed-forward parts in 8 bits, with a float32 scale for each output.
        """
        held: list[Weight] = [self.embedding, self.final_norm]
        if self.head is not self.embedding:
            held.append(self.head)
        rounded: list[Weight] = []
        for layer in self.layers:
            parts = {field.name: getattr(layer, field.name) for field in fields(layer)}
            rounded += [parts.pop(name) for name in ("gate_up", "down") if int8]
            held += [part for part in parts.values() if part is not None]
        return sum(part.numel() + 4 * len(part) for part in rounded) + sum(
            part.numel() * part.dtype.itemsize if isinstance(part, CodedWeight) and not as_codes else part.nbytes
            for part in held
        )

    def to(self, device: torch.device) -> ModelWeights:
        """The same weights on ``device``; a tied head stays tied."""
        embedding = self.embedding.to(device)
        return ModelWeights(
            embedding=embedding,
            layers=tuple(_layer_to(layer, device) for layer in self.layers),
            final_norm=self.final_norm.to(device),
            head=embedding if self.head is self.embedding else self.head.to(device),
        )


def _layer_to(layer: LayerWeights, device: torch.device) -> LayerWeights:
    tensors = {field.name: getattr(layer, field.name) for field in fields(layer)}
    moved = {name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None}
    return replace(layer, **moved)
