"""Pairs per second of the whole engine on random weights of real model shapes.

A pair is a row with two labels below a prefix. *Cold*: nobody has computed the prefix. *Warm*: it is
cached, and the rows are new. The share of the time in which the device works is printed for warm
steps: what is missing to 100 % is the host's. Steps of a few hundred tokens are replayed as CUDA graphs
where the engine could record them; the small batch is timed again without, for what they win back.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.models import random_checkpoint
from engine.config import EngineConfig
from engine.model_config import ModelConfig
from engine.records import LabelOutcome, LabelReadout, Row, ScoreTask, StepStats, TaskStats, TokenIds
from engine.runner import EngineThread, build_engine


class BadScores(Exception):
    """A row has no finite score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``rows`` rows of ``shortest`` to ``longest`` tokens below a prefix."""

    name: str
    prefix_tokens: int
    rows: int
    shortest: int
    longest: int


BATCHES = (
    Batch(name="rerank, 100 documents", prefix_tokens=200, rows=100, shortest=20, longest=300),
    Batch(name="rerank, 1000 documents", prefix_tokens=200, rows=1000, shortest=20, longest=300),
    Batch(name="100 questions on a document", prefix_tokens=4200, rows=100, shortest=20, longest=60),
    Batch(name="10 questions on a document", prefix_tokens=4200, rows=10, shortest=20, longest=60),
)
SMALL = Batch(name="4 questions on a document", prefix_tokens=4200, rows=4, shortest=20, longest=60)
"""Warm, one step that a graph holds."""


class _Nobody:
    """An observer that looks at nothing."""

    def on_step(self, stats: StepStats) -> None: ...

    def on_task(self, stats: TaskStats) -> None: ...


class Run:
    """One engine on one model; batches of random token ids go through it."""

    def __init__(self, name: str, config: ModelConfig, settings: EngineConfig, dtype: torch.dtype) -> None:
        self._rng = np.random.default_rng(0)
        self._vocab_size = config.vocab_size
        checkpoint = random_checkpoint(name, config, torch.device(settings.device), dtype)
        self._engine: EngineThread = build_engine(checkpoint, settings, _Nobody())
        self._engine.start()
        self._on_cuda = settings.device == "cuda"

    def close(self) -> None:
        self._engine.close(drain_s=0)

    def measure(self, batch: Batch, *, repeats: int) -> str:
        """A line of the table: largest graph, medians of cold and warm pairs per second, busy share of the device.

        Raises:
            BadScores: a row came back without a finite score.
        """
        cold, warm = [], []
        for _ in range(repeats):
            prefix = self._tokens(batch.prefix_tokens)
            cold.append(self._score(batch, prefix))
            warm.append(self._score(batch, prefix))
        rates = [batch.rows / statistics.median(seconds) for seconds in (cold, warm)]
        busy = f"{self._busy(batch, prefix):.0%}" if self._on_cuda else "-"
        graphs = max(self._engine.info.replayed_tokens, default=None)
        return f"| {batch.name} | {graphs or '-'} | {rates[0]:.0f} | {rates[1]:.0f} | {busy} |"

    def _busy(self, batch: Batch, prefix: TokenIds) -> float:
        """Share of one warm batch in which a kernel ran."""
        with profile(activities=[ProfilerActivity.CUDA]) as taken:
            seconds = self._score(batch, prefix)
        busy_us = sum(float(event.self_device_time_total) for event in taken.key_averages())
        return busy_us * 1e-6 / seconds

    def _tokens(self, count: int) -> TokenIds:
        return self._rng.integers(self._vocab_size, size=count).astype(np.int32)

    def _score(self, batch: Batch, prefix: TokenIds) -> float:
        lengths = self._rng.integers(batch.shortest, batch.longest + 1, batch.rows)
        rows = tuple(
            Row(
                tokens=np.concatenate([prefix, self._tokens(int(length))]),
                readout=LabelReadout(label_ids=(1, 2)),
                keep_tokens=len(prefix),
            )
            for length in lengths
        )
        began = time.perf_counter()
        result = self._engine.submit(ScoreTask(task_id="run", namespace="a", rows=rows)).result()
        seconds = time.perf_counter() - began
        for index, row in enumerate(result.rows):
            if not isinstance(row.outcome, LabelOutcome):
                raise BadScores(f"{batch.name}: row {index} ended as {row.outcome}")
        return seconds
