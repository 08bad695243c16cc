"""Random weights of real model shapes: a machine with a GPU may have no checkpoint."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.model_config import LayerAttention, ModelConfig
from engine.rotary import Rotary
from engine.weights import LayerWeights, ModelWeights


def _qwen3(hidden_size: int, num_layers: int, num_heads: int, intermediate_size: int, *, tied: bool) -> ModelConfig:
    return ModelConfig(
        architecture="Qwen3ForCausalLM",
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=intermediate_size,
        vocab_size=151_936,
        max_positions=40_960,
        rms_norm_eps=1e-6,
        layers=(LayerAttention(rotary=Rotary(theta=1e6)),) * num_layers,
        query_scale=128**-0.5,
        tie_word_embeddings=tied,
        query_key_norm=True,
    )


MODELS = {
    "Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen3-8B": _qwen3(4096, 36, 32, 12_288, tied=False),
}


def random_checkpoint(name: str, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Weights that keep activations of one size through the layers, made where they will be used."""
    rng = torch.Generator(device).manual_seed(0)
    d, width = config.hidden_size, config.head_dim

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=rng, device=device, dtype=dtype).mul_(1 / math.sqrt(columns))

    def norm(size: int) -> Tensor:
        return torch.ones(size, device=device)

    layers = tuple(
        LayerWeights(
            input_norm=norm(d),
            qkv=matrix((config.num_heads + 2 * config.num_kv_heads) * width, d),
            attention_out=matrix(d, config.num_heads * width),
            feed_forward_norm=norm(d),
            gate_up=matrix(2 * config.intermediate_size, d),
            down=matrix(d, config.intermediate_size),
            query_norm=norm(width) if config.query_key_norm else None,
            key_norm=norm(width) if config.query_key_norm else None,
        )
        for _ in range(config.num_layers)
    )
    embedding = matrix(config.vocab_size, d)
    head = embedding if config.tie_word_embeddings else matrix(config.vocab_size, d)
    weights = ModelWeights(embedding=embedding, layers=layers, final_norm=norm(d), head=head)
    return Checkpoint(config=config, weights=weights, revision="random", name=name)
