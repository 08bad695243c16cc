"""The score of a pair that several prompts speak of: orders are averaged, parts of a document compete."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from scorer.scoring.item_plan import ItemPlan, Part
from scorer.scoring.readouts import LabelPlan, ReadoutPlan
from scorer.scoring.scores import ItemScore, Judgement, Reading, best_answer, item_score, judge, rounded


def score_item(item: ItemPlan, readings: Mapping[int, Reading], readouts: Sequence[ReadoutPlan]) -> ItemScore:
    """The score of a pair.

    Args:
        readings: By index of the prompt; those of the item are there.
        readouts: Of all prompts of the batch.
    """
    plan = readouts[item.chunks[0][0].prompt]
    chunks = [_by_order(item, chunk, readings, readouts) for chunk in item.chunks]
    values = [_value(_mean(orders), plan) for orders in chunks]
    best = max(range(len(values)), key=values.__getitem__)
    chosen = [chunks[best]] if item.combine == "max" else chunks
    orders = [_mean([chunk[order] for chunk in chosen]) for order in range(item.num_orders)]
    whole = _mean(orders)
    score = item_score(whole, plan, content_free=bool(item.content_free))
    if item.num_orders > 1:
        spread = [_value(order, plan, of=whole) for order in orders]
        score = replace(score, spread=rounded(max(spread) - min(spread)), agreement=_agreement(orders, whole, plan))
    if len(chunks) > 1:
        score = replace(score, num_chunks=len(chunks), best_chunk=best)
    return score


def _by_order(
    item: ItemPlan, chunk: Sequence[Part], readings: Mapping[int, Reading], readouts: Sequence[ReadoutPlan]
) -> list[Judgement]:
    """What one chunk says in each order, over all comparisons."""
    judgements: list[list[Judgement]] = [[] for _ in range(item.num_orders)]
    for place, part in enumerate(chunk):
        order = place % item.num_orders
        empty = readings[item.content_free[order].prompt] if item.content_free else None
        reading, readout = readings[part.prompt], readouts[part.prompt]
        judgements[order].append(judge(reading, readout, positive=part.positive, content_free=empty))
    return [_mean(each) for each in judgements]


def _mean(judgements: Sequence[Judgement]) -> Judgement:
    if len(judgements) == 1:
        return judgements[0]
    count = len(judgements)
    first = judgements[0]
    # documents that are compared share no labels: their sets may differ in size
    alike = len({len(judgement.shares) for judgement in judgements}) == 1
    return Judgement(
        score=math.fsum(judgement.score for judgement in judgements) / count,
        shares=[
            math.fsum(column) / count for column in zip(*(judgement.shares for judgement in judgements), strict=True)
        ]
        if alike
        else (),
        label_mass=_mean_of([judgement.label_mass for judgement in judgements]),
        log_prob_sum=_mean_of([judgement.log_prob_sum for judgement in judgements]),
        target_tokens=first.target_tokens,
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _value(judgement: Judgement, plan: ReadoutPlan, *, of: Judgement | None = None) -> float:
    """What counts: the score, or the share of the option that is chosen (by ``of``)."""
    if isinstance(plan, LabelPlan) and plan.answers == "options":
        return judgement.shares[best_answer((of or judgement).shares)]
    return judgement.score


def _agreement(orders: Sequence[Judgement], whole: Judgement, plan: ReadoutPlan) -> float | None:
    """Share of orders with the answer of the mean; None where labels are no answers."""
    if not isinstance(plan, LabelPlan) or plan.answers == "documents":
        return None
    answer = best_answer(whole.shares)
    return rounded(sum(best_answer(order.shares) == answer for order in orders) / len(orders))
