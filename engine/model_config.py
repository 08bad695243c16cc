"""The shape of a decoder, as data: one form for every family. Read from checkpoints by :mod:`engine.families`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.errors import CheckpointError
from engine.rotary import Rotary

Activation: TypeAlias = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What the attention of one layer may do otherwise than that of the next.

    Args:
        window: A token sees this many of the last positions, its own included; None: all.
    """

    rotary: Rotary
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredForm:
    """How the tensors of a checkpoint differ from what the forward pass reads.

    Args:
        norm_offset: Added to every norm weight; Gemma's files hold how far it is from 1.
        fused: Query, key and value are one tensor, gate and up another.
        interleaved_rotary: Rows of query and key stand in the order that turns neighbours
            together, not halves.
        among_other_parts: The decoder is one part of the model, such as beside one that sees
            images; the files hold the others too.
    """

    norm_offset: float = 0.0
    fused: bool = False
    interleaved_rotary: bool = False
    among_other_parts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder: pre-norm, grouped attention over rotary positions, gated feed-forward.

    Args:
        architecture: The checkpoint's own word for what it is.
        layers: One entry per layer.
        query_scale: Factor on the products of query and key.
        qkv_bias, attention_out_bias: Whether those projections add a bias.
        query_key_norm: Whether each head of query and key is normed before it is turned.
        output_norms: Whether what attention and feed-forward give is normed before it is added.
        embedding_scale: Factor on what is looked up in the embedding.
        attention_soft_cap, logit_soft_cap: ``c`` in ``c * tanh(x / c)``, applied to attention
            scores and to logits.
    """

    architecture: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    layers: tuple[LayerAttention, ...]
    query_scale: float
    tie_word_embeddings: bool
    qkv_bias: bool = False
    attention_out_bias: bool = False
    query_key_norm: bool = False
    output_norms: bool = False
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    stored: StoredForm = StoredForm()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kv_bytes_per_token(self, element_bytes: int, scale_bytes: int = 0) -> int:
        """``2 × layers × kv_heads × (head_dim × element_bytes + scale_bytes)`` (K and V of every layer).

        Layers with a window count in full: the tree keeps what any later token may need.
        """
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * element_bytes + scale_bytes)

    @property
    def num_parameters(self) -> int:
        """Elements of all weights; a head tied to the embedding counts once."""
        qkv_rows = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (qkv_rows + self.num_heads * self.head_dim + 3 * self.intermediate_size)
        layer += qkv_rows * self.qkv_bias + self.hidden_size * self.attention_out_bias
        layer += self.hidden_size * (4 if self.output_norms else 2) + 2 * self.head_dim * self.query_key_norm
        vocabulary = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + vocabulary + self.hidden_size


def check_consistent(config: ModelConfig, source: str) -> ModelConfig:
    """``config``, if its sizes fit together.

    Raises:
        CheckpointError: names ``source`` and the sizes.
    """
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{source}: {config.num_heads} query heads cannot be shared evenly by {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{source}: the head size is {config.head_dim}; rotary embedding needs an even one")
    return config
