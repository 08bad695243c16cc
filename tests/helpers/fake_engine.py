"""An engine without a model: scores are a hash of token ids, token counts are worked out naively."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from engine import (
    BranchEnd,
    BranchResult,
    EngineClosed,
    EngineHealth,
    EngineInfo,
    EngineSnapshot,
    GenerateResult,
    GenerateTask,
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    LikelihoodReadout,
    Outcome,
    Row,
    RowResult,
    RowUsage,
    ScoreResult,
    ScoreTask,
    TaskStats,
    TokenIds,
    Unscored,
)


class FakeEngine:
    """Implements :class:`engine.api.Engine`; answers at once unless told otherwise.

    Attributes to set:
        held: Tasks wait until :meth:`release`.
        refuse_with: ``submit`` raises this.
        fail_with: Futures raise this.
        poison: ``{row: value}``: what is read for these rows, such as NaN.
        late: Rows that come back unscored because of the deadline.
        says: What every branch of a generation says before it ends by itself; at first, tokens that count up.
        first_score_s: What the statistics say of the time to the first score.
    """

    def __init__(self, *, vocab_size: int = 1000, max_row_tokens: int = 2048, held: bool = False) -> None:
        self._info = EngineInfo(
            model="fake",
            revision="rev1",
            dtype="float32",
            linear_dtype="float32",
            kv_dtype="float32",
            warm_up_s=0.0,
            device="cpu",
            kernels="none",
            vocab_size=vocab_size,
            num_layers=1,
            weight_bytes=1000,
            kv_bytes_per_token=1,
            block_size=16,
            num_blocks=100,
            max_row_tokens=max_row_tokens,
            step_tokens=64,
            max_queued_tokens=10_000,
            replayed_tokens=(16, 32),
        )
        self._lock = threading.Lock()
        self._pending: dict[Future[Any], ScoreTask | GenerateTask] = {}
        self._kept: dict[str, list[TokenIds]] = {}
        self.held = held
        self.refuse_with: Exception | None = None
        self.fail_with: Exception | None = None
        self.poison: dict[int, float] = {}
        self.late: set[int] = set()
        self.says: Sequence[int] | None = None
        self.generations: list[GenerateTask] = []
        self.first_score_s = 0.001
        self.alive = True
        self.accepting = True
        self.tasks: list[ScoreTask] = []
        self.num_cancelled = 0
        self.closed_with: float | None = None

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        if self.refuse_with is not None:
            raise self.refuse_with
        future: Future[ScoreResult] = Future()
        self.tasks.append(task)
        self._take(future, task)
        return future

    def generate(self, task: GenerateTask) -> Future[GenerateResult]:
        if self.refuse_with is not None:
            raise self.refuse_with
        future: Future[GenerateResult] = Future()
        self.generations.append(task)
        self._take(future, task)
        return future

    def _take(self, future: Future[Any], task: ScoreTask | GenerateTask) -> None:
        with self._lock:
            self._pending[future] = task
        future.add_done_callback(self._forget)
        if not self.held:
            self._end(future)

    def release(self) -> None:
        """End all tasks that wait."""
        for future in list(self._pending):
            self._end(future)

    def health(self) -> EngineHealth:
        snapshot = EngineSnapshot(num_blocks=100, free_blocks=100, queued_tasks=self.num_pending)
        return EngineHealth(alive=self.alive, accepting=self.alive and self.accepting, snapshot=snapshot)

    def close(self, *, drain_s: float) -> None:
        self.closed_with = drain_s
        self.accepting = False
        for future in list(self._pending):
            if not future.cancelled():
                future.set_exception(EngineClosed("closed"))

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.pop(future, None)
        self.num_cancelled += future.cancelled()

    def _end(self, future: Future[Any]) -> None:
        task = self._pending[future]
        if self.fail_with is not None:
            future.set_exception(self.fail_with)
        elif isinstance(task, GenerateTask):
            future.set_result(self._say(task))
        else:
            future.set_result(self._result(task))

    def _say(self, task: GenerateTask) -> GenerateResult:
        """Every branch says the same."""
        branches = []
        script = range(task.max_tokens) if self.says is None else self.says
        for branch in range(task.num_branches):
            said: list[int] = []
            end: BranchEnd = "length" if len(script) >= task.max_tokens else "stop"
            for token in script[: task.max_tokens]:
                said.append(token)
                if not task.listener.on_token(branch, token):
                    end = "stop"
                    break
            task.listener.on_end(branch, end)
            branches.append(BranchResult(token_ids=tuple(said), log_probs=(-0.5,) * len(said), end=end))
        num_said = sum(len(branch.token_ids) for branch in branches)
        stats = TaskStats(
            task_id=task.task_id,
            end="ok",
            num_rows=task.num_branches,
            prompt_tokens=len(task.tokens) + num_said,
            computed_tokens=len(task.tokens) + num_said,
            generated_tokens=num_said,
            first_score_s=self.first_score_s,
            total_s=self.first_score_s,
        )
        return GenerateResult(branches=tuple(branches), stats=stats)

    def _result(self, task: ScoreTask) -> ScoreResult:
        usages = self._usages(task)
        rows = tuple(
            RowResult(outcome=self._outcome(index, row), usage=usage)
            for index, (row, usage) in enumerate(zip(task.rows, usages, strict=True))
        )
        stats = TaskStats(
            task_id=task.task_id,
            end="partial" if self.late else "ok",
            num_rows=len(rows),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            shared_tokens=sum(usage.shared_tokens for usage in usages),
            computed_tokens=sum(usage.computed_tokens for usage in usages),
            num_steps=1,
            queue_s=0.002,
            prefill_s=0.01,
            readout_s=0.003,
            first_score_s=self.first_score_s,
            total_s=self.first_score_s,
        )
        return ScoreResult(rows=rows, stats=stats)

    def _outcome(self, index: int, row: Row) -> Outcome:
        if index in self.late:
            return Unscored(reason="deadline")
        read = row.readout
        if isinstance(read, LabelReadout):
            logits = tuple(self.poison.get(index, _hash(row.tokens, label)) for label in read.label_ids)
            return LabelOutcome(logits=logits, log_sum_exp=5.0 if read.log_sum_exp else None)
        assert isinstance(read, LikelihoodReadout)
        values = (self.poison.get(index, -_hash(row.tokens, int(token))) for token in read.target_ids)
        return LikelihoodOutcome(log_probs=tuple(values))

    def _usages(self, task: ScoreTask) -> list[RowUsage]:
        """Count what each row finds in kept prefixes, in earlier rows, and has to compute."""
        kept = self._kept.setdefault(task.namespace, [])
        before: list[TokenIds] = []
        usages: list[RowUsage] = []
        for row in task.rows:
            total = len(row.tokens)
            cached = min(_longest_match(row.tokens, kept), total - 1)
            found = max(cached, _longest_match(row.tokens, before))
            usages.append(
                RowUsage(
                    prompt_tokens=total,
                    cached_tokens=cached,
                    shared_tokens=found - cached,
                    computed_tokens=total - found,
                )
            )
            before.append(row.tokens)
        kept += [row.tokens[: row.keep_tokens] for row in task.rows]
        return usages


def _hash(tokens: TokenIds, salt: int) -> float:
    """A number in [0, 4] that depends on every token."""
    return zlib.crc32(tokens.tobytes(), salt) / 2**30


def _longest_match(tokens: TokenIds, others: Sequence[TokenIds]) -> int:
    best = 0
    for other in others:
        length = min(len(tokens), len(other))
        differing = np.flatnonzero(tokens[:length] != other[:length])
        best = max(best, int(differing[0]) if len(differing) else length)
    return best
