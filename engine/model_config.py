"""The shape of a decoder, read from a checkpoint and checked field by field."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One Llama-shaped decoder: pre-norm, RoPE in half-split form, gated SiLU feed-forward."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """``2 × layers × kv_heads × head_dim × element_bytes`` (K and V of every layer)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes
