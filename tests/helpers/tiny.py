"""Small random models and engines for tests, and a judge that shares no code with the engine."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from engine.checkpoint import Checkpoint
from engine.config import EngineConfig
from engine.model_config import LayerAttention, ModelConfig
from engine.records import Row, ScoreResult, ScoreTask, StepStats, TaskStats
from engine.rotary import Rotary
from engine.runner import EngineThread, build_engine
from engine.weights import LayerWeights, ModelWeights


def tiny_config(*, num_layers: int = 2, **changes: object) -> ModelConfig:
    """Three query heads to one KV head: 3 is the ratio of the default model."""
    values: dict[str, object] = {
        "architecture": "LlamaForCausalLM",
        "layers": (LayerAttention(rotary=Rotary(theta=10_000.0)),) * num_layers,
        "hidden_size": 48,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "vocab_size": 97,
        "max_positions": 4096,
        "rms_norm_eps": 1e-5,
        "query_scale": 0.25,
        "tie_word_embeddings": True,
    }
    return ModelConfig(**(values | changes))  # type: ignore[arg-type]


def tiny_checkpoint(config: ModelConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Random weights, scaled so that every layer matters to the logits."""
    rng = torch.Generator().manual_seed(seed)
    d, width = config.hidden_size, config.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=rng).div(math.sqrt(columns)).to(dtype)

    def norm() -> torch.Tensor:
        return torch.randn(d, generator=rng).mul(0.1).add(1)

    layers = tuple(
        LayerWeights(
            input_norm=norm(),
            qkv=matrix((config.num_heads + 2 * config.num_kv_heads) * width, d),
            attention_out=matrix(d, config.num_heads * width),
            feed_forward_norm=norm(),
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


class Gate(Log):
    """An observer that stops the engine after every step, before the tasks of that step end."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._open = False

    def on_step(self, stats: StepStats) -> None:
        super().on_step(stats)
        self._arrived.release()
        if not self._open:
            assert self._passes.acquire(timeout=60)

    def wait(self) -> None:
        """Return when the engine stands after a step that was not waited for yet."""
        assert self._arrived.acquire(timeout=60)

    def pass_one(self) -> None:
        self._passes.release()

    def open(self) -> None:
        """Stop nobody from now on."""
        self._open = True
        self._passes.release()


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
    engine = unstarted_engine(
        checkpoint, log, num_blocks=num_blocks, block_size=block_size, step_tokens=step_tokens, **config
    )
    engine.start()
    return engine


def unstarted_engine(
    checkpoint: Checkpoint,
    log: Log | None = None,
    *,
    num_blocks: int = 512,
    block_size: int = 4,
    step_tokens: int = 64,
    **config: object,
) -> EngineThread:
    """An engine whose pool holds nothing but NaN: what is read before it is written shows."""
    dtype = "bfloat16" if checkpoint.weights.embedding.dtype == torch.bfloat16 else "float32"
    settings = EngineConfig(
        block_size=block_size,
        step_tokens=step_tokens,
        dtype=dtype,  # type: ignore[arg-type]
        **config,  # type: ignore[arg-type]
    )
    token_bytes = checkpoint.config.kv_bytes_per_token(*settings.kv_widths)
    settings = dataclasses.replace(settings, pool_bytes=num_blocks * block_size * token_bytes)
    engine = build_engine(checkpoint, settings, log or Log())
    fill_pool(engine, torch.nan)
    return engine


def fill_pool(engine: EngineThread, value: float) -> None:
    """Write ``value`` to every slot of an engine that runs nothing."""
    pool = engine._steps._pool
    for numbers in pool.scales or (pool.keys, pool.values):
        numbers.fill_(value)


@contextmanager
def running(engine: EngineThread) -> Iterator[EngineThread]:
    """Close the engine at the end, whatever happens, and without waiting for what is queued."""
    try:
        yield engine
    finally:
        engine.close(drain_s=0)


def task_of(
    rows: Sequence[Row], *, namespace: str = "a", task_id: str = "task", deadline_s: float | None = None
) -> ScoreTask:
    return ScoreTask(task_id=task_id, namespace=namespace, rows=tuple(rows), deadline_s=deadline_s)


def score(engine: EngineThread, rows: Sequence[Row], *, namespace: str = "a") -> ScoreResult:
    """Submit and wait."""
    return engine.submit(task_of(rows, namespace=namespace)).result(timeout=60)
