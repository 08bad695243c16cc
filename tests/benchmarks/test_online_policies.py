from __future__ import annotations

import random

import pytest

from benchmarks.offline_optimum import best_hits
from benchmarks.online_policies import frequency_hits, recency_hits


def test_least_recently_used_goes_first() -> None:
    # c pushes out b, because a was used after it
    assert recency_hits("abacab", capacity=2) == 2


def test_least_often_used_goes_first_and_its_count_outlives_it() -> None:
    # c and d push out each other, never a
    assert frequency_hits("aaacdcda", capacity=2) == 3
    # a was evicted for c; back again it counts three uses, so d takes the place of b and not its
    assert frequency_hits("aabbcadbb", capacity=2) == 3


def test_newcomer_stays_even_if_everything_else_was_used_more_often() -> None:
    assert frequency_hits("aaabb", capacity=1) == 3


@pytest.mark.parametrize("seed", range(5))
def test_neither_beats_the_optimum(seed: int) -> None:
    rng = random.Random(seed)
    accesses = rng.choices(range(30), weights=[1 / rank for rank in range(1, 31)], k=200)

    best = best_hits(accesses, item_units=1, capacity_units=6)

    assert 0 < recency_hits(accesses, capacity=6) <= best
    assert 0 < frequency_hits(accesses, capacity=6) <= best
