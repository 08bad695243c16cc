"""Chooses what runs in the next step: whole rows, a chunk of a long one, shared prefixes once.

Tasks are served in the order of their arrival, the rows of a task in sorted order. A step
ends between two rows unless a row alone exceeds the budget. Where it ends, the next rows take
along what they share with the step: the path is kept for them, and positions they read are
read now. Since a row reads its positions in order, a step that computes some that a later row
reads begins where that row's reading does: see :meth:`engine.sequence.TaskState.closed_from`.
So no position of a task is computed twice unless it was evicted meanwhile, and no step exceeds the budget.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from engine.errors import OutOfCapacity
from engine.prefix_cache import Growth, PrefixCache
from engine.prefix_tree import Match, Node, Segment
from engine.records import Unscored
from engine.row_order import common_prefix, sort_key
from engine.sequence import RowState, TaskState
from engine.step_trie import Interval, PathClaims, StepRow, StepTrie


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """Everything a forward pass needs to know, in token ids and block ids.

    Args:
        tasks: Of its rows, each once.
        new: For each row the intervals of positions that are computed on its behalf.
        growths, segments: What will be added to the cache, and where its KV goes.
        growth_places: Where the first token of each growth stands on the packed axis.
    """

    rows: list[StepRow]
    tasks: list[TaskState]
    trie: StepTrie
    new: list[list[Interval]]
    growths: list[Growth]
    growth_places: list[int]
    segments: list[Segment]


@dataclass(slots=True)
class _Selection:
    """Rows of one task for a step, in sorted order.

    Args:
        common: What each row shares with the one before it; 0 for the first.
        complete: They are all that is left of the task.
    """

    rows: list[StepRow] = field(default_factory=list)
    common: list[int] = field(default_factory=list)
    new_tokens: int = 0
    complete: bool = False

    def add(self, row: StepRow, common: int) -> None:
        self.common.append(common if self.rows else 0)
        self.rows.append(row)


class Scheduler:
    """Holds the tasks that wait or run, in order; makes steps out of them.

    Between steps a task holds at most one path in the cache, and of the tasks that do not decode
    only the first in the queue can hold one. Not thread-safe: the engine thread owns it.
    """

    def __init__(self, cache: PrefixCache, *, step_tokens: int) -> None:
        self._cache = cache
        self._step_tokens = step_tokens
        self._tasks: deque[TaskState] = deque()
        self._parts: Counter[str] = Counter()  # tasks in hand by the request that they are parts of
        self._began: dict[str, int] = {}  # what the clock of the cache said when those requests had their first step
        self._left_over: list[Node] = []  # spare nodes of tasks that have ended, which something still needs

    @property
    def num_tasks(self) -> int:
        return len(self._tasks)

    @property
    def queued_tokens(self) -> int:
        """Positions that the tasks in hand are still expected to compute."""
        return sum(task.queued_tokens for task in self._tasks)

    def add(self, task: TaskState) -> None:
        """Take ``task``; note a use of what it will find in the cache, and count what it will not."""
        uncached = 0
        claims = PathClaims()
        for _, row, match in self._visits(task, claims):
            self._cache.touch(match)
            uncached += _size(claims.claim(row.fresh_from(match), len(row.row.tokens)))
        task.queued_tokens = uncached
        self._tasks.append(task)
        self._parts[task.task.task_id] += 1

    def remove(self, task: TaskState) -> None:
        """Forget a task that has ended, however it ended; it holds nothing afterwards.

        What it kept for itself alone leaves the cache, as soon as no other task stands on it.
        """
        self._tasks.remove(task)
        self._parts[task.task.task_id] -= 1
        if not self._parts[task.task.task_id]:
            del self._parts[task.task.task_id]
            self._began.pop(task.task.task_id, None)
        self._hold(task, None)
        left_over = [*reversed(task.spare), *self._left_over]  # children first
        self._left_over = [rest for node in left_over if (rest := self._cache.drop_spare(node)) is not None]
        self._cache.forget_empty_namespaces()

    def tasks(self) -> list[TaskState]:
        return list(self._tasks)

    def next_step(self) -> Step | None:
        """Choose rows and reserve their room in the cache; None if no task waits.

        What the step stands on is held until :meth:`finish`.
        """
        if not self._tasks:
            return None
        chosen: list[_Selection] = []
        budget = self._step_tokens
        alone = True
        for task in self._tasks:
            selection = self._select(task, budget, alone=alone)
            chosen.append(selection)
            budget -= selection.new_tokens
            # or the few tokens of those that decode would keep a long row waiting until they end
            alone = alone and (task.decodes or not selection.rows)
            if budget <= 0 or not selection.complete:
                break
        step = self._try(chosen, optional_keeps=True) or self._smallest_step()
        for started in step.tasks:
            if started.began is None:
                started.began = self._began.setdefault(started.task.task_id, self._cache.clock)
        return step

    def finish(self, step: Step, *, commit: bool) -> int:
        """Publish what the step kept, or give its room back if it failed; let go of its paths.

        Tasks that go on hold the path that their next row shares with what is in the cache. What
        led to a number that is not finite does not stay there.

        Returns:
            Positions that stay in the cache since this step.
        """
        kept_tokens = 0
        if commit:
            kept_tokens = self._commit(step)
        else:
            self._cache.abandon(step.segments)
        self._release(step.rows)
        for row in step.rows:
            if isinstance(row.state.outcome, Unscored):
                # attention spreads a number that is not finite to positions before it
                self._hold(row.task, None)
                self._cache.distrust(self._cache.match(row.task.task.namespace, row.tokens))
        for task in step.tasks:
            self._hold(task, self._next_match(task))
        return kept_tokens

    def _commit(self, step: Step) -> int:
        """Publish what the step kept, and count for each task what stays on its behalf."""
        kept_tokens = 0
        for row in step.rows:
            found = self._cache.keep(row.match, row.wanted)
            row.task.kept_tokens += found
            kept_tokens += found
        tasks = {task.serial: task for task in step.tasks}
        for growth, node in zip(step.growths, self._cache.commit(step.growths, step.segments), strict=True):
            owner = tasks[growth.owner]
            if growth.spare:
                owner.spare.append(node)
            else:
                owner.kept_tokens += len(growth.tokens)
                kept_tokens += len(growth.tokens)
        return kept_tokens

    def _smallest_step(self) -> Step:
        """The first row (or a chunk of it) of the first task, keeping only what it must."""
        task = self._tasks[0]
        for evict_held_paths in (False, True):
            if evict_held_paths:
                # a path of many short nodes may waste so much of its blocks that the rest does not fit
                for holder in self._tasks:
                    self._hold(holder, None)
                self._cache.evict_all()
            chosen = self._select(task, self._step_tokens, alone=True, most_rows=1)
            if (step := self._try([chosen], optional_keeps=False)) is not None:
                return step
        raise AssertionError("a row that fits the pool fits it once everything else is evicted")

    def _try(self, chosen: list[_Selection], *, optional_keeps: bool) -> Step | None:
        """A step of ``chosen`` that holds what it stands on; None, and nothing held, if there is no room for it."""
        rows, common = _merge([selection for selection in chosen if selection.rows])
        for node in _stands_on(rows):
            self._cache.hold(node)
        try:
            return self._plan(rows, common, optional_keeps=optional_keeps)
        except OutOfCapacity:
            self._release(rows)
            return None

    def _select(self, task: TaskState, budget: int, *, alone: bool, most_rows: int | None = None) -> _Selection:
        """Rows of ``task`` for this step.

        Args:
            budget: Most positions to compute.
            alone: Nothing else is in the step yet, so a row that exceeds ``budget`` is cut.
            most_rows: Stop after so many whole rows.
        """
        chosen = _Selection()
        claims = PathClaims()
        visits = self._visits(task, claims)
        for place, row, match in visits:
            start, end = row.fresh_from(match), len(row.row.tokens)
            missing = claims.missing(start, end)
            first = task.closed_from(place, missing[0][0]) if missing else end
            if first < start:
                missing = claims.missing(first, end)
            new_tokens = _size(missing)
            full = most_rows is not None and len(chosen.rows) >= most_rows
            if full or new_tokens > budget - chosen.new_tokens:
                break
            keep = row.row.keep_tokens + row.row.spare_tokens
            chosen.add(StepRow(task, row, end, keep, match), task.order.common[place])
            chosen.new_tokens += new_tokens
            claims.take(missing, end)
        else:
            chosen.complete = True
            return chosen
        # `row` is the first that does not fit whole: a chunk of it, or only what it shares
        common = task.order.common[place]
        if alone and not chosen.rows:
            claims.claim(first, first + budget)
            chosen.new_tokens = budget
        if claims.covered > start:
            chosen.add(StepRow(task, row, claims.covered, claims.covered, match), common)
            common = len(row.row.tokens)
        for place, row, match in visits:
            common = min(common, task.order.common[place])
            if claims.covered <= row.first_read_from_here:
                break
            if claims.covered > row.first_unread:
                # what this row reads of the shared path is read now or computed twice
                chosen.add(StepRow(task, row, claims.covered, claims.covered, match), common)
                common = len(row.row.tokens)
        return chosen

    def _visits(self, task: TaskState, claims: PathClaims) -> Iterator[tuple[int, RowState, Match]]:
        """Rows from the cursor on: their places in the order of the task, and how far they are in the cache."""
        match: Match | None = None
        for place in range(task.cursor, len(task.order.order)):
            row = task.rows[task.order.order[place]]
            common = task.order.common[place] if place > task.cursor else 0
            match = self._cache.match(task.task.namespace, row.row.tokens, after=match, common=common)
            claims.approach(common)
            yield place, row, match

    def _plan(self, rows: list[StepRow], common: list[int], *, optional_keeps: bool) -> Step:
        if not optional_keeps:
            for row in rows:
                if row.end == len(row.tokens):
                    row.keep = 0
        trie = StepTrie(rows, common)
        growths, places = _growths(trie)
        segments = self._cache.reserve(growths)
        claims = PathClaims()
        new = []
        for row, shared in zip(rows, common, strict=True):
            claims.approach(shared)
            new.append(claims.claim(row.fresh_from, row.end))
        return Step(
            rows=rows,
            tasks=list({row.task.serial: row.task for row in rows}.values()),
            trie=trie,
            new=new,
            growths=growths,
            growth_places=places,
            segments=segments,
        )

    def _next_match(self, task: TaskState) -> Match | None:
        if task.finished:
            return None
        return self._cache.match(task.task.namespace, task.rows[task.order.order[task.cursor]].row.tokens)

    def _hold(self, task: TaskState, match: Match | None) -> None:
        held, task.held = task.held, None
        if match is not None and match.nodes:
            task.held = match.last
            self._cache.hold(match.last)
        if held is not None:
            self._cache.let_go(held)

    def _release(self, rows: Iterable[StepRow]) -> None:
        for node in _stands_on(rows):
            self._cache.let_go(node)


def _growths(trie: StepTrie) -> tuple[list[Growth], list[int]]:
    """What the step will add to the cache, parents first, and where it stands on the packed axis."""
    growths: list[Growth] = []
    places: list[int] = []
    growth_of: dict[int, int] = {}  # id of a trie node -> index of its growth
    for node in trie.nodes:
        start = max(node.low, min(node.row.match.depth, node.high))
        parent = growth_of.get(id(node.parent)) if start == node.low else None
        wanted = min(max(node.wanted, start), node.keep)
        for low, high, spare in ((start, wanted, False), (max(start, wanted), node.keep, True)):
            if high <= low:
                continue
            places.append(node.packed + low - node.fresh_low)
            growths.append(
                Growth(
                    anchor=node.row.match.last,
                    parent=parent,
                    start=low,
                    tokens=node.row.tokens[low:high],
                    owner=node.row.task.serial,
                    spare=spare,
                )
            )
            parent = growth_of[id(node)] = len(growths) - 1
    return growths, places


def _stands_on(rows: Iterable[StepRow]) -> list[Node]:
    """Where the rows end in the tree, in their order; a node that several share comes once."""
    return list(dict.fromkeys(row.match.last for row in rows))


def _merge(chosen: list[_Selection]) -> tuple[list[StepRow], list[int]]:
    """Rows of several tasks in one sorted order, with the shared lengths of neighbours."""
    if len(chosen) == 1:
        return chosen[0].rows, chosen[0].common
    keyed = [((row.task.task.namespace, sort_key(row.tokens)), row) for selection in chosen for row in selection.rows]
    keyed.sort(key=itemgetter(0))
    rows = [row for _, row in keyed]
    common = [0] * bool(rows)
    for left, right in pairwise(rows):
        same = left.task.task.namespace == right.task.task.namespace
        common.append(common_prefix(left.tokens, right.tokens) if same else 0)
    return rows, common


def _size(intervals: Iterable[Interval]) -> int:
    return sum(high - low for low, high in intervals)
