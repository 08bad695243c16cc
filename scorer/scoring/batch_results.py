"""From the rows of a finished task back to pairs: scores, faults, usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine import RowResult, RowUsage, ScoreResult, sum_usage
from scorer.scoring.batch import BatchPlan, BatchTimes, ItemFault, Pair, ScoredBatch, ScoredItem
from scorer.scoring.item_plan import ItemPlan
from scorer.scoring.item_scores import score_item
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.readouts import ReadoutPlan
from scorer.scoring.scores import ItemScore, Late, NonFinite, Reading, read, score_of

_FAULTS: Final[Mapping[type[Exception], ItemFault]] = {
    Late: ItemFault(
        status="unscored",
        outcome="deadline",
        code="deadline_exceeded",
        message="the deadline passed before this pair was scored",
        retryable=True,
    ),
    NonFinite: ItemFault(
        status="error",
        outcome="non_finite",
        code="non_finite_score",
        message="the model gave NaN or infinity for this pair",
        retryable=False,
    ),
}
_NOT_RUN: Final = ItemFault(
    status="unscored",
    outcome="failed",
    code="not_run",
    message="the request was refused because of another pair",
    retryable=False,
)


def scored_batch(
    plan: BatchPlan,
    result: ScoreResult | None,
    *,
    request_id: str,
    model_name: str,
    tokenise_s: float,
    before_engine_s: float,
    total_s: float,
) -> ScoredBatch:
    """The answer to a request.

    Args:
        result: None if the engine was not needed, or the request is to be refused.
        before_engine_s: Arrival of the request to its submission.
        total_s: Arrival of the request to now.
    """
    stats = None if result is None else result.stats
    items = collect_items(plan, () if result is None else result.rows)
    first_score_s = stats.first_score_s if stats and any(item.score for item in items) else None
    return ScoredBatch(
        request_id=request_id,
        model=model_name,
        plan=plan,
        items=items,
        stats=stats,
        times=BatchTimes(
            tokenise_s=tokenise_s,
            queue_s=stats.queue_s if stats else 0.0,
            prefill_s=stats.prefill_s if stats else 0.0,
            readout_s=stats.readout_s if stats else 0.0,
            ttft_s=None if first_score_s is None else before_engine_s + first_score_s,
            total_s=total_s,
        ),
    )


def collect_items(plan: BatchPlan, rows: Sequence[RowResult]) -> list[ScoredItem]:
    """What became of each pair of ``plan``, in order.

    Args:
        rows: In the order of the plan's rows.
    """
    if plan.items is not None:
        return _composed_items(plan, plan.items, rows)
    items: list[ScoredItem] = []
    branches = {readout: readout.branches for readout in set(plan.readouts)}  # most often there is one
    taken = 0
    for index, (pair, prompt, readout) in enumerate(zip(plan.pairs, plan.prompts, plan.readouts, strict=True)):
        if isinstance(prompt, PromptError):
            fault = _fault_of(prompt, query=pair[0], document=pair[1])
            items.append(ScoredItem(index=index, result=fault, usage=None, truncated_tokens=0))
            continue
        own = rows[taken : taken + branches[readout]]
        taken += len(own)
        items.append(
            ScoredItem(
                index=index,
                result=_result_of(own, readout),
                usage=own[0].usage if len(own) == 1 else sum_usage([row.usage for row in own]),
                truncated_tokens=prompt.truncated_tokens + prompt.truncated_query_tokens,
            )
        )
    return items


def _result_of(rows: Sequence[RowResult], readout: ReadoutPlan) -> ItemScore | ItemFault:
    if not rows:
        return _NOT_RUN
    try:
        return score_of([row.outcome for row in rows], readout)
    except (Late, NonFinite) as error:
        return _FAULTS[type(error)]


@dataclass(frozen=True, slots=True)
class _Read:
    """What became of one prompt; ``usage`` is None if it has no rows."""

    result: Reading | ItemFault | PromptError
    usage: RowUsage | None


def _composed_items(plan: BatchPlan, items: Sequence[ItemPlan], rows: Sequence[RowResult]) -> list[ScoredItem]:
    """As ``collect_items``; what a prompt cost counts for the first pair that reads it."""
    reads = list(_reads(plan, rows))
    counted: set[int] = set()
    found: list[ScoredItem] = []
    for index, (pair, item) in enumerate(zip(plan.pairs, items, strict=True)):
        places = dict.fromkeys(part.prompt for part in item.parts)
        usages = [usage for place in places if place not in counted and (usage := reads[place].usage) is not None]
        counted.update(places)
        found.append(
            ScoredItem(
                index=index,
                result=_composed_result(item, pair, reads, plan.readouts),
                usage=sum_usage(usages) if any(reads[place].usage for place in places) else None,
                truncated_tokens=item.cut_tokens + _cut_tokens(item, plan.prompts),
            )
        )
    return found


def _reads(plan: BatchPlan, rows: Sequence[RowResult]) -> Iterator[_Read]:
    taken = 0
    for prompt, readout in zip(plan.prompts, plan.readouts, strict=True):
        if isinstance(prompt, PromptError):
            yield _Read(prompt, None)
            continue
        own = rows[taken : taken + readout.branches]
        taken += readout.branches
        yield _Read(_reading_of(own, readout), sum_usage([row.usage for row in own]))


def _reading_of(rows: Sequence[RowResult], readout: ReadoutPlan) -> Reading | ItemFault:
    if not rows:
        return _NOT_RUN
    try:
        return read([row.outcome for row in rows], readout)
    except (Late, NonFinite) as error:
        return _FAULTS[type(error)]


def _composed_result(
    item: ItemPlan, pair: Pair, reads: Sequence[_Read], readouts: Sequence[ReadoutPlan]
) -> ItemScore | ItemFault:
    readings: dict[int, Reading] = {}
    for part in item.parts:
        result = reads[part.prompt].result
        if isinstance(result, PromptError):
            return _fault_of(result, query=pair[0], document=pair[1])
        if isinstance(result, ItemFault):
            return result
        readings[part.prompt] = result
    return score_item(item, readings, readouts)


def _cut_tokens(item: ItemPlan, prompts: Sequence[PairPrompt | PromptError]) -> int:
    """Cut from the texts of a pair while its prompts were built; all orders of a chunk are cut alike."""
    first = [prompts[chunk[0].prompt] for chunk in item.chunks]
    built = [prompt for prompt in first if isinstance(prompt, PairPrompt)]
    return sum(prompt.truncated_tokens for prompt in built) + max(
        (prompt.truncated_query_tokens for prompt in built), default=0
    )


def _fault_of(error: PromptError, *, query: int, document: int) -> ItemFault:
    fields = {
        "query": f"queries[{query}]",
        "options": f"queries[{query}].options",
        "document": f"documents[{document}]",
    }
    return ItemFault(
        status="error",
        outcome="invalid",
        code=error.code,
        message=error.message,
        retryable=False,
        field=fields.get(error.slot, error.slot),
        value=error.tokens,
        limit=error.limit,
    )
