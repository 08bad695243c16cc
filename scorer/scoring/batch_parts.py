"""A planned batch in parts that are answered one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from engine import RowResult, RowUsage, ScoreResult, TaskStats, Unscored
from scorer.scoring.batch import BatchPlan, ItemFault, ScoredItem
from scorer.scoring.batch_results import collect_items
from scorer.scoring.prompt_types import PromptError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPart:
    """Some pairs of a batch that follow each other.

    Args:
        first: Index of the first of them in the batch.
        plan: Theirs alone.
    """

    first: int
    plan: BatchPlan

    def items(self, rows: Sequence[RowResult]) -> list[ScoredItem]:
        """What became of the pairs, with their places in the batch."""
        found = collect_items(self.plan, rows)
        return [structs.replace(item, index=self.first + item.index) for item in found]

    def late_items(self) -> list[ScoredItem]:
        """All that were not started when the deadline passed; pairs with a fault of their own keep it."""
        late = RowResult(outcome=Unscored(reason="deadline"), usage=RowUsage(prompt_tokens=0))
        return self.items([late] * len(self.plan.rows))

    def failed_items(self, fault: ItemFault) -> list[ScoredItem]:
        """All with the same fault, but for those that have one of their own."""
        return [
            item if isinstance(item.result, ItemFault) and item.usage is None else structs.replace(item, result=fault)
            for item in self.late_items()
        ]


def split_plan(plan: BatchPlan, max_rows: int) -> Iterator[BatchPart]:
    """Parts of at most ``max_rows`` rows, or of one pair that has more.

    A batch whose pairs are read from several prompts, or share some, is one part.
    """
    if plan.items is not None:
        yield BatchPart(first=0, plan=plan)
        return
    first = taken = rows = 0
    for index, (prompt, readout) in enumerate(zip(plan.prompts, plan.readouts, strict=True)):
        own = 0 if isinstance(prompt, PromptError) else readout.branches
        if index > first and rows + own > max_rows:
            yield _part(plan, first, index, taken, rows)
            first, taken, rows = index, taken + rows, 0
        rows += own
    yield _part(plan, first, len(plan.pairs), taken, rows)


def _part(plan: BatchPlan, first: int, end: int, taken: int, rows: int) -> BatchPart:
    part = replace(
        plan,
        pairs=plan.pairs[first:end],
        prompts=plan.prompts[first:end],
        readouts=plan.readouts[first:end],
        rows=plan.rows[taken : taken + rows],
        templates=None if plan.templates is None else plan.templates[first:end],
    )
    return BatchPart(first=first, plan=part)


def summed_stats(task_id: str, results: Sequence[ScoreResult]) -> TaskStats:
    """The tokens of several tasks together; of their times only that to the first score."""
    stats = [result.stats for result in results]
    known = [each.first_score_s for each in stats if each.first_score_s is not None]
    return TaskStats(
        task_id=task_id,
        end="ok",
        num_rows=sum(each.num_rows for each in stats),
        prompt_tokens=sum(each.prompt_tokens for each in stats),
        cached_tokens=sum(each.cached_tokens for each in stats),
        shared_tokens=sum(each.shared_tokens for each in stats),
        computed_tokens=sum(each.computed_tokens for each in stats),
        kept_tokens=sum(each.kept_tokens for each in stats),
        first_score_s=min(known, default=None),
    )
