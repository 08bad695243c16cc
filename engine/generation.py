"""Tokens one after the other, as rounds of rows through the same steps as everything else.

A round asks for one token in every branch that goes on. Its rows are the prompt and what was said
so far, so all but their last token is found in the cache; branches that have said the same are
one row. Between two rounds nothing is held: what is evicted meanwhile is computed again.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from engine.records import (
    BranchEnd,
    BranchResult,
    GenerateResult,
    GenerateTask,
    Row,
    RowUsage,
    ScoreTask,
    TaskEnd,
    TaskStats,
    TokenOutcome,
    TokenReadout,
    Unscored,
    sum_usage,
)
from engine.row_order import order_rows
from engine.sequence import RowState, TaskState


@dataclass(slots=True)
class _Branch:
    """What has been said; ``end`` is None while it goes on."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    end: BranchEnd | None = None


@dataclass(eq=False, kw_only=True)
class GenerationState(TaskState):
    """A generation that has been submitted and has not ended.

    Args:
        asked: What was submitted; ``task`` holds the rows of the round.
        place: Tokens that every branch which goes on has said.
        usage_before: Of the rounds before this one.
    """

    asked: GenerateTask
    branches: list[_Branch]
    place: int = 0
    usage_before: RowUsage = field(default_factory=lambda: RowUsage(prompt_tokens=0))

    @classmethod
    def begin(cls, asked: GenerateTask, serial: int, future: Future[GenerateResult]) -> GenerationState:
        """The state before the first token: one row, the prompt, for all branches."""
        read = TokenReadout(sampling=asked.sampling, branches=tuple(range(asked.num_branches)))
        prompt = Row(tokens=asked.tokens, readout=read, keep_tokens=len(asked.tokens))
        task = ScoreTask(task_id=asked.task_id, namespace=asked.namespace, rows=(prompt,), deadline_s=asked.deadline_s)
        state = cls(
            task=task,
            serial=serial,
            future=future,
            order=order_rows([asked.tokens]),
            asked=asked,
            branches=[_Branch() for _ in range(asked.num_branches)],
        )
        state.admitted_tokens = len(asked.tokens) + asked.num_branches * asked.max_tokens
        return state

    @property
    def decodes(self) -> bool:
        return self.place > 0

    @property
    def has_output(self) -> bool:
        return self.place > 0 or self.finished

    def go_on(self) -> bool:
        """Take the tokens of this round and make rows for the next; False if every branch has ended.

        Raises:
            Exception: whatever the listener raises.
        """
        for row in self.rows:
            self._take(row)
        rows = self._next_rows()
        if not rows:
            return False
        self.usage_before = self.usage()
        self.place += 1
        self.task = replace(self.task, rows=rows)
        self.order = order_rows([row.tokens for row in rows])
        self.set_out()
        self.queued_tokens = len(rows)
        return True

    def usage(self) -> RowUsage:
        """The prompt counts once; of later rounds the one position that each row adds."""
        return sum_usage([self.usage_before, super().usage()])

    def stats(self, end: TaskEnd) -> TaskStats:
        return replace(
            super().stats(end),
            num_rows=len(self.branches),
            generated_tokens=sum(len(branch.token_ids) for branch in self.branches),
        )

    def result(self, end: TaskEnd) -> GenerateResult:
        """Every branch as far as it came; one that goes on ran into the deadline."""
        branches = tuple(
            BranchResult(
                token_ids=tuple(branch.token_ids), log_probs=tuple(branch.log_probs), end=branch.end or "deadline"
            )
            for branch in self.branches
        )
        return GenerateResult(branches=branches, stats=self.stats(end))

    def _take(self, row: RowState) -> None:
        read, outcome = row.row.readout, row.outcome
        assert isinstance(read, TokenReadout), "a generation reads tokens"
        if isinstance(outcome, Unscored):
            for number in read.branches:
                self._end(number, "non_finite")
            return
        assert isinstance(outcome, TokenOutcome), "a token is what is read"
        for number, token, log_prob in zip(read.branches, outcome.token_ids, outcome.log_probs, strict=True):
            self._say(number, token, log_prob)

    def _say(self, number: int, token: int, log_prob: float) -> None:
        if token in self.asked.end_ids:
            self._end(number, "stop")
            return
        branch = self.branches[number]
        branch.token_ids.append(token)
        branch.log_probs.append(log_prob)
        if not self.asked.listener.on_token(number, token):
            self._end(number, "stop")
        elif len(branch.token_ids) == self.asked.max_tokens:
            self._end(number, "length")

    def _end(self, number: int, end: BranchEnd) -> None:
        self.branches[number].end = end
        self.asked.listener.on_end(number, end)

    def _next_rows(self) -> tuple[Row, ...]:
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, branch in enumerate(self.branches):
            if branch.end is None:
                alike[tuple(branch.token_ids)].append(number)
        return tuple(
            Row(
                tokens=np.concatenate([self.asked.tokens, np.array(said, dtype=np.int32)]),
                readout=TokenReadout(sampling=self.asked.sampling, branches=tuple(numbers), place=len(said)),
                keep_tokens=len(self.asked.tokens),
                spare_tokens=len(said),
            )
            for said, numbers in alike.items()
        )
