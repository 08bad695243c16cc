"""This project's engine, called in process with token ids."""

from __future__ import annotations

import gc
import itertools
import os
import platform
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import get_type_hints

import msgspec
import numpy as np
import torch

from benchmarks.idle import resident_bytes
from benchmarks.messages import STAGES, Profile, Start, Started
from benchmarks.profiled import ProfiledKernels, profiled_kernels
from benchmarks.systems.contract import Answer
from benchmarks.systems.futures import combined
from benchmarks.workloads import Group
from engine import LabelOutcome, LabelReadout, Row, ScoreResult, ScoreTask, StepStats, TaskStats
from engine.config import EngineConfig
from engine.runner import EngineThread, start_engine

_CLOSE_S = 10.0


class StepLog:
    """An engine's observer that adds up what steps did."""

    def __init__(self) -> None:
        self.computed_tokens = 0
        self.steps = 0
        self.stages = dict.fromkeys(STAGES, 0.0)

    def on_step(self, stats: StepStats) -> None:
        self.computed_tokens += stats.computed_tokens
        self.steps += 1
        for stage in STAGES:
            self.stages[stage] += getattr(stats, f"{stage}_s")

    def on_task(self, stats: TaskStats) -> None:
        """Tasks are counted where they are asked for."""


class Ours:
    """The engine with the settings in ``start.options``: names of ``EngineConfig``, values as text.

    The option ``profile`` puts a clock around every operation.
    """

    is_remote = False

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        options = dict(start.options)
        profiled = options.pop("profile", "") == "yes"
        self._config = engine_config(options, threads=start.threads)
        self._model, self._labels = Path(start.model), labels
        self._serial = itertools.count()
        self._log = StepLog()
        touch_libraries(start.threads)
        self._base_bytes = resident_bytes(os.getpid())
        self._kernels: ProfiledKernels | None = None
        if profiled:
            with profiled_kernels() as made:
                self._engine = start_engine(self._model, self._config, self._log)
            self._kernels = made[0]
        else:
            self._engine = start_engine(self._model, self._config, self._log)

    def started(self) -> Started:
        info = self._engine.info
        changed = ", ".join(
            f"{name} {value}"
            for name in EngineConfig.__dataclass_fields__
            if (value := getattr(self._config, name)) is not None
        )
        return Started(
            version=f"revision {info.revision}, torch {torch.__version__}, Python {platform.python_version()}",
            settings=f"kernels {info.kernels}, {changed}",
            facts={
                "base_bytes": self._base_bytes,
                "weight_bytes": info.weight_bytes,
                "kv_bytes_per_token": info.kv_bytes_per_token,
                "pool_tokens": info.num_blocks * info.block_size,
                "block_size": info.block_size,
                "step_tokens": info.step_tokens,
            },
        )

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        return _score(self._engine, group, self._labels, f"{next(self._serial)}", namespace)

    def computed_tokens(self) -> int:
        return self._log.computed_tokens

    def exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        """Scores of a second engine in float32 that lives for this call only."""
        config = EngineConfig(dtype="float32", pool_bytes=1 << 26, num_threads=self._config.num_threads)
        exact = start_engine(self._model, config, StepLog())
        try:
            return _score(exact, Group((), (), prompts), self._labels, "exact", "exact").result().log_odds
        finally:
            exact.close(drain_s=_CLOSE_S)
            gc.unfreeze()

    def forget(self) -> None:
        """Namespaces keep repeats apart; eviction makes room."""

    def profile(self) -> Profile:
        """Costs since the last call; only with the option ``profile``."""
        if self._kernels is None:
            raise ValueError("the engine runs without the option profile=yes")
        stages, self._log.stages = self._log.stages, dict.fromkeys(STAGES, 0.0)
        steps, self._log.steps = self._log.steps, 0
        return Profile(operations=self._kernels.take_costs(), stages=stages, steps=steps)

    def close(self) -> None:
        self._engine.close(drain_s=_CLOSE_S)


def engine_config(options: dict[str, str], *, threads: int) -> EngineConfig:
    """Settings from text.

    Raises:
        ValueError: a name is no setting, or its value does not fit.
    """
    hints = get_type_hints(EngineConfig)
    unknown = sorted(set(options) - set(hints))
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such setting of the engine; there are {', '.join(hints)}")
    values = {name: msgspec.convert(text, hints[name], strict=False) for name, text in options.items()}
    return EngineConfig(**{"num_threads": threads, **values})


def _score(
    engine_thread: EngineThread, group: Group, labels: tuple[int, int], task_id: str, namespace: str
) -> Future[Answer]:
    prefix = np.array(group.prefix, dtype=np.int32)
    readout = LabelReadout(label_ids=labels)
    rows = tuple(
        Row(
            tokens=np.concatenate([prefix, np.array(tail, dtype=np.int32)]),
            readout=readout,
            keep_tokens=len(prefix),
        )
        for tail in group.tails
    )
    scored = engine_thread.submit(ScoreTask(task_id=task_id, namespace=namespace, rows=rows))
    return combined([scored], lambda results: _answer(results[0]))


def _answer(result: ScoreResult) -> Answer:
    log_odds = []
    for row in result.rows:
        if not isinstance(row.outcome, LabelOutcome):
            raise TypeError(f"a row came back as {row.outcome}; logits of two labels were asked for")
        first, second = row.outcome.logits
        log_odds.append(first - second)
    return Answer(
        log_odds=tuple(log_odds),
        cached_by_row=tuple(row.usage.cached_tokens for row in result.rows),
        computed_by_row=tuple(row.usage.computed_tokens for row in result.rows),
        received=sum(row.usage.prompt_tokens for row in result.rows),
        forward_s=result.stats.prefill_s,
    )


def touch_libraries(threads: int) -> None:
    """Run one matrix product, so that what the libraries hold for themselves counts as base.

    On a thread that ends, as in :func:`engine.runner.start_engine`: OpenMP's that wait for another slow the engine's.
    """
    torch.set_num_threads(threads)
    ones = torch.ones(64, 64).bfloat16()
    with ThreadPoolExecutor(1) as toucher:
        toucher.submit(torch.nn.functional.linear, ones, ones).result()
