"""Small random models and engines for tests, and a judge that shares no code with the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine.checkpoint import Checkpoint
from engine.config import EngineConfig
from engine.model_config import ModelConfig
from engine.records import StepStats, TaskStats
from engine.runner import EngineThread, build_engine
from engine.weights import LayerWeights, ModelWeights


def tiny_config(**changes: object) -> ModelConfig:
    """Two layers, three query heads to one KV head: 3 is the ratio of the default model."""
    values: dict[str, object] = {
        "architecture": "LlamaForCausalLM",
        "num_layers": 2,
        "hidden_size": 48,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "vocab_size": 97,
        "max_positions": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
    }
    return ModelConfig(**(values | changes))  # type: ignore[arg-type]


def tiny_checkpoint(config: ModelConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Random weights, scaled so that every layer matters to the logits."""
    rng = torch.Generator().manual_seed(seed)
    d, width = config.hidden_size, config.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=rng) * columns**-0.5).to(dtype)

    def norm() -> torch.Tensor:
        return (1 + 0.1 * torch.randn(d, generator=rng)).to(dtype)

    layers = tuple(
        LayerWeights(
            input_norm=norm(),
            qkv=matrix((config.num_heads + 2 * config.num_kv_heads) * width, d),
            attention_out=matrix(d, config.num_heads * width),
            post_norm=norm(),
            gate_up=matrix(2 * config.intermediate_size, d),
            down=matrix(d, config.intermediate_size),
        )
        for _ in range(config.num_layers)
    )
    embedding = torch.randn(config.vocab_size, d, generator=rng).to(dtype)
    weights = ModelWeights(embedding=embedding, layers=layers, final_norm=norm(), head=embedding)
    return Checkpoint(config=config, weights=weights, revision=f"tiny{seed}", name="tiny")


@dataclass
class Log:
    """An observer that remembers."""

    steps: list[StepStats] = field(default_factory=list)
    tasks: list[TaskStats] = field(default_factory=list)

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_task(self, stats: TaskStats) -> None:
        self.tasks.append(stats)


def tiny_engine(
    checkpoint: Checkpoint,
    log: Log | None = None,
    *,
    num_blocks: int = 512,
    block_size: int = 4,
    step_tokens: int = 64,
    **config: object,
) -> EngineThread:
    """An engine of ``num_blocks`` blocks, started."""
    dtype = "bfloat16" if checkpoint.weights.embedding.dtype == torch.bfloat16 else "float32"
    token_bytes = checkpoint.config.kv_bytes_per_token(checkpoint.weights.embedding.element_size())
    settings = EngineConfig(
        block_size=block_size,
        pool_bytes=num_blocks * block_size * token_bytes,
        step_tokens=step_tokens,
        dtype=dtype,  # type: ignore[arg-type]
        **config,  # type: ignore[arg-type]
    )
    engine = build_engine(checkpoint, settings, log or Log())
    engine.start()
    return engine
