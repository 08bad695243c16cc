from __future__ import annotations

import random

import pytest

from scorer.dialects.ranking import best_items
from scorer.scoring.batch import ItemFault, ScoredItem
from scorer.scoring.scores import ItemScore

FAULT = ItemFault(status="error", outcome="invalid", code="c", message="m", retryable=False)


def item(index: int, score: float | None) -> ScoredItem:
    result = FAULT if score is None else ItemScore(score=score, relevance=1 - score)
    return ScoredItem(index=index, result=result, usage=None, truncated_tokens=0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("top_n", [None, 1, 3, 100])
def test_agrees_with_sorting_by_score_then_index_whatever_the_ties(seed: int, top_n: int | None) -> None:
    rng = random.Random(seed)
    scores = [rng.choice([None, 0.1, 0.5, 0.9]) for _ in range(12)]

    best = best_items([item(index, score) for index, score in enumerate(scores)], top_n, by=lambda score: score.score)

    ranked = sorted((-score, index) for index, score in enumerate(scores) if score is not None)
    assert [each.index for each in best] == [index for _, index in ranked][:top_n]


def test_orders_by_the_scale_that_is_asked_for() -> None:
    items = [item(0, 0.2), item(1, 0.8)]

    assert [each.index for each in best_items(items, 2, by=lambda score: score.score)] == [1, 0]
    assert [each.index for each in best_items(items, 2, by=lambda score: score.relevance)] == [0, 1]
