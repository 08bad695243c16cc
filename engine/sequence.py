"""The mutable state of a task and its rows while they run. Owned by the engine thread."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from engine.prefix_tree import Match, Node
from engine.records import (
    GenerateResult,
    LabelReadout,
    LikelihoodReadout,
    Outcome,
    Row,
    RowResult,
    RowUsage,
    ScoreResult,
    ScoreTask,
    TaskEnd,
    TaskStats,
    TokenReadout,
    Unscored,
    sum_usage,
)
from engine.row_order import RowOrder


class RowState:
    """How far one row has come.

    ``first_unread`` is the first position whose hidden state is still wanted: nothing from it
    on may be taken from the cache. ``accounted`` positions have been counted as cached,
    shared or computed; those before ``counted_from`` are not this row's to count. No row from
    this one on, in the order of the task, reads a position before ``first_read_from_here``.
    """

    __slots__ = (
        "accounted",
        "cached",
        "computed",
        "counted_from",
        "first_read_from_here",
        "first_unread",
        "log_probs",
        "outcome",
        "recomputed",
        "row",
        "shared",
    )

    def __init__(self, row: Row, *, counted_from: int = 0) -> None:
        self.row = row
        self.counted_from = counted_from
        self.first_unread = first_read(row)
        self.first_read_from_here = self.first_unread
        self.accounted = counted_from
        self.cached = 0
        self.shared = 0
        self.computed = 0
        self.recomputed = 0
        self.log_probs: list[float] = []
        self.outcome: Outcome | None = None

    def fresh_from(self, match: Match) -> int:
        """The first position that a step must compute for this row, standing at ``match``."""
        return min(match.depth, self.first_unread)

    def account(self, match: Match, *, end: int, fresh_from: int, new: list[tuple[int, int]], began: int) -> None:
        """Count the positions up to ``end`` that this step settled for the row.

        Args:
            match: Where the row stood in the tree when the step was made; still valid.
            fresh_from: Where the step began to compute for the row.
            new: Intervals of positions that the step computes on behalf of this row.
            began: The clock of the cache when the first step of the row's task was made.
        """
        settled = min(self.accounted, end)
        cached = max(0, min(fresh_from, end, match.known_at(began)) - settled)
        computed = sum(max(0, high - max(low, settled)) for low, high in new)
        self.cached += cached
        self.computed += computed
        self.shared += end - settled - cached - computed
        self.recomputed += sum(high - low for low, high in new) - computed
        self.accounted = max(self.accounted, end)

    def usage(self) -> RowUsage:
        return RowUsage(
            prompt_tokens=self.accounted - self.counted_from,
            cached_tokens=self.cached,
            shared_tokens=self.shared,
            computed_tokens=self.computed,
            recomputed_tokens=self.recomputed,
        )


def first_read(row: Row) -> int:
    """The first position of ``row`` whose hidden state its readout needs."""
    match row.readout:
        case LabelReadout() | TokenReadout():
            return len(row.tokens) - 1
        case LikelihoodReadout(target_ids=target_ids):
            return len(row.tokens) - len(target_ids)


@dataclass(slots=True, eq=False)
class TaskState:
    """A task that has been submitted and has not ended.

    Args:
        serial: Distinct per engine; the owner of the nodes that the task adds to the tree.
        rows: In the order of the task.
        order: How rows are visited.
        cursor: Place in ``order`` of the first row without an outcome.
        held: End of the path that the next row will need, protected from eviction.
        spare: What the task put into the cache that nobody else wants kept, parents first.
        began: The clock of the cache when its first step was made: what was committed later is no hit.
        queued_tokens: Positions this task is still expected to compute.
        admitted_tokens: What it counts for in the queue until it ends.
    """

    task: ScoreTask
    serial: int
    future: Future[Any]
    order: RowOrder
    submitted_s: float = field(default_factory=time.monotonic)
    rows: list[RowState] = field(default_factory=list)
    cursor: int = 0
    held: Node | None = None
    spare: list[Node] = field(default_factory=list)
    began: int | None = None
    queued_tokens: int = 0
    admitted_tokens: int = 0
    first_step_s: float | None = None
    first_score_s: float | None = None
    prefill_s: float = 0.0
    readout_s: float = 0.0
    num_steps: int = 0
    kept_tokens: int = 0

    def __post_init__(self) -> None:
        self.set_out()
        self.admitted_tokens = self.queued_tokens

    def set_out(self) -> None:
        """Begin with the rows of the task."""
        self.rows = [RowState(row, counted_from=len(row.tokens) - 1 if self.decodes else 0) for row in self.task.rows]
        for following, index in pairwise(reversed(self.order.order)):
            row = self.rows[index]
            row.first_read_from_here = min(row.first_unread, self.rows[following].first_read_from_here)
        self.cursor = 0
        self.queued_tokens = self.order.unique_tokens

    @property
    def finished(self) -> bool:
        """Whether every row has an outcome."""
        return self.cursor == len(self.rows)

    @property
    def decodes(self) -> bool:
        """Whether it needs but one position for each row, over and over."""
        return False

    @property
    def has_output(self) -> bool:
        """Whether there is something to answer if it had to end now."""
        return any(row.outcome is not None for row in self.rows)

    def go_on(self) -> bool:
        """Called when every row has an outcome: make rows of what follows from them, if anything does."""
        return False

    def closed_from(self, place: int, position: int) -> int:
        """Where a step begins that computes ``position`` of the row at ``place`` of the order, and what follows.

        A later row that passes through ``position`` and reads it must read it in this step, or the
        position would be computed twice; and a row reads in order, so it must have read what comes
        before. The same goes for those positions.
        """
        shared = len(self.rows[self.order.order[place]].row.tokens)
        for later in range(place + 1, len(self.rows)):
            row = self.rows[self.order.order[later]]
            shared = min(shared, self.order.common[later])
            if shared <= position or position <= row.first_read_from_here:
                break
            position = min(position, row.first_unread)
        return position

    def advance(self) -> None:
        """Move the cursor past rows that have an outcome."""
        while self.cursor < len(self.rows) and self.rows[self.order.order[self.cursor]].outcome is not None:
            self.cursor += 1

    def usage(self) -> RowUsage:
        """The sum over all rows."""
        return sum_usage([row.usage() for row in self.rows])

    def stats(self, end: TaskEnd) -> TaskStats:
        now, usage = time.monotonic(), self.usage()
        return TaskStats(
            task_id=self.task.task_id,
            end=end,
            num_rows=len(self.rows),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            shared_tokens=usage.shared_tokens,
            computed_tokens=usage.computed_tokens,
            recomputed_tokens=usage.recomputed_tokens,
            kept_tokens=self.kept_tokens,
            num_steps=self.num_steps,
            queue_s=(self.first_step_s or now) - self.submitted_s,
            prefill_s=self.prefill_s,
            readout_s=self.readout_s,
            first_score_s=None if self.first_score_s is None else self.first_score_s - self.submitted_s,
            total_s=now - self.submitted_s,
        )

    def result(self, end: TaskEnd) -> ScoreResult | GenerateResult:
        """Every row with its outcome; a row without one ran into the deadline."""
        unscored = Unscored(reason="deadline")
        rows = tuple(RowResult(outcome=row.outcome or unscored, usage=row.usage()) for row in self.rows)
        return ScoreResult(rows=rows, stats=self.stats(end))
