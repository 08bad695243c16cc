"""The best of a batch: one rule of order for every dialect."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from scorer.scoring.batch import ScoredItem
from scorer.scoring.scores import ItemScore


def best_items(items: list[ScoredItem], top_n: int | None, *, by: Callable[[ItemScore], float]) -> list[ScoredItem]:
    """The ``top_n`` best of the items that have a score (None: all), best first, ties by index.

    A heap of ``top_n`` entries finds the few best of many without sorting the rest.
    """
    scored = [(-by(score), item.index, item) for item in items if (score := item.score) is not None]
    best = sorted(scored) if top_n is None else heapq.nsmallest(top_n, scored)
    return [item for _, _, item in best]
