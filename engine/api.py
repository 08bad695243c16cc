"""The engine as the service sees it; the seam for fakes in service tests."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from engine.records import (
    EngineHealth,
    EngineInfo,
    GenerateResult,
    GenerateTask,
    ScoreResult,
    ScoreTask,
    StepStats,
    TaskStats,
)


class EngineObserver(Protocol):
    """Told what happened, on the engine's thread: must be quick and must not raise."""

    def on_step(self, stats: StepStats) -> None: ...

    def on_task(self, stats: TaskStats) -> None: ...


class Engine(Protocol):
    """Scores tasks of token ids. Safe to call from any thread."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        """Queue a task.

        The future ends exactly once. Cancelling it frees what the task holds at the end of
        the step that is running.

        Raises:
            InvalidTask: the task can never run (a row is empty, longer than
                ``info.max_row_tokens``, or names a token outside the vocabulary).
            OutOfCapacity: the queue is full; ``retry_after_s`` says when to come back.
            EngineClosed: the engine is draining or dead.

        The future raises ``DeadlineExceeded``, ``EngineFault`` or ``EngineClosed``.
        """
        ...

    def generate(self, task: GenerateTask) -> Future[GenerateResult]:
        """Queue a generation; as :meth:`submit` in every other way.

        It is admitted once, for the prompt and the longest branches that may come of it.
        """
        ...

    def health(self) -> EngineHealth: ...

    def close(self, *, drain_s: float) -> None:
        """Refuse new tasks, let queued ones finish for at most ``drain_s``, then end the rest."""
        ...
