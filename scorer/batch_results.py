"""From the rows of a finished task back to pairs: scores, faults, usage."""

from __future__ import annotations

from collections.abc import Sequence

from engine import RowResult, RowUsage, ScoreResult, Unscored
from scorer.batch import BatchPlan, BatchTimes, ItemFault, ScoredBatch, ScoredItem
from scorer.prompt_types import PromptError
from scorer.readouts import ReadoutPlan
from scorer.scores import ItemScore, NonFinite, score_of

_LATE = ItemFault(
    status="unscored",
    outcome="deadline",
    code="deadline_exceeded",
    message="the deadline passed before this pair was scored",
    retryable=True,
)
_NON_FINITE = ItemFault(
    status="error",
    outcome="non_finite",
    code="non_finite_score",
    message="the model gave NaN or infinity for this pair",
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
        result: None if the engine was not needed.
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
    items: list[ScoredItem] = []
    taken = 0
    for index, (pair, prompt, readout) in enumerate(zip(plan.pairs, plan.prompts, plan.readouts, strict=True)):
        if isinstance(prompt, PromptError):
            fault = _fault_of(prompt, query=pair[0], document=pair[1])
            items.append(ScoredItem(index=index, result=fault, usage=None, truncated_tokens=0))
            continue
        own = rows[taken : taken + readout.branches]
        taken += readout.branches
        items.append(
            ScoredItem(
                index=index,
                result=_result_of(own, readout),
                usage=sum_usage([row.usage for row in own]),
                truncated_tokens=prompt.truncated_tokens + prompt.truncated_query_tokens,
            )
        )
    return items


def sum_usage(usages: Sequence[RowUsage]) -> RowUsage:
    if len(usages) == 1:
        return usages[0]
    return RowUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        shared_tokens=sum(usage.shared_tokens for usage in usages),
        computed_tokens=sum(usage.computed_tokens for usage in usages),
    )


def _result_of(rows: Sequence[RowResult], readout: ReadoutPlan) -> ItemScore | ItemFault:
    outcomes = [row.outcome for row in rows]
    reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, Unscored)}
    if reasons:
        return _LATE if "deadline" in reasons else _NON_FINITE
    try:
        return score_of(outcomes, readout)
    except NonFinite:
        return _NON_FINITE


def _fault_of(error: PromptError, *, query: int, document: int) -> ItemFault:
    fields = {"query": f"queries[{query}]", "document": f"documents[{document}]"}
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
