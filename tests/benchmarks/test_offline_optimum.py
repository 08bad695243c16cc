from __future__ import annotations

import random
from functools import cache

import pytest

from benchmarks.offline_optimum import best_hits


def exhaustive(accesses: tuple[int, ...], units: int, capacity: int) -> int:
    """Most hits over all ways to fill the cache after every access, tried one by one."""
    items = sorted(set(accesses))

    def fillings(limits: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Every way to keep at most ``limits`` of each item within the capacity."""
        ways: set[tuple[int, ...]] = {()}
        for limit in limits:
            ways = {(*way, kept) for way in ways for kept in range(limit + 1) if sum(way) + kept <= capacity}
        return ways

    @cache
    def best(place: int, held: tuple[int, ...]) -> int:
        if place == len(accesses):
            return 0
        item = items.index(accesses[place])
        limits = (*held[:item], units, *held[item + 1 :])
        return held[item] + max(best(place + 1, way) for way in fillings(limits))

    return best(0, (0,) * len(items))


def least_recently_used(accesses: list[int], capacity: int) -> int:
    held: list[int] = []
    hits = 0
    for item in accesses:
        hits += item in held
        held = [item, *(other for other in held if other != item)][:capacity]
    return hits


@pytest.mark.parametrize("seed", range(12))
def test_no_way_to_fill_the_cache_does_better(seed: int) -> None:
    rng = random.Random(seed)
    units, capacity = rng.choice([(1, 2), (2, 3), (2, 4), (3, 4)])
    accesses = tuple(rng.choices(range(4), k=9))

    assert best_hits(accesses, item_units=units, capacity_units=capacity) == exhaustive(accesses, units, capacity)


def test_keeps_what_is_used_next_and_passes_by_what_is_not() -> None:
    # with room for one item, keep 1 through 2, 3 and 4, which come once
    assert best_hits([1, 2, 1, 3, 1, 4, 1], item_units=10, capacity_units=10) == 30


def test_keeps_items_in_part() -> None:
    assert best_hits([1, 2, 1, 2], item_units=4, capacity_units=6) == 6


def test_room_for_everything_misses_each_item_once() -> None:
    accesses = [1, 2, 3, 1, 2, 3, 3]

    assert best_hits(accesses, item_units=5, capacity_units=15) == 5 * 4


def test_no_room_means_no_hits() -> None:
    assert best_hits([1, 1, 1], item_units=5, capacity_units=0) == 0


def test_is_never_below_least_recently_used() -> None:
    rng = random.Random(3)
    for _ in range(50):
        accesses = rng.choices(range(12), weights=[1 / rank for rank in range(1, 13)], k=60)

        assert best_hits(accesses, item_units=1, capacity_units=4) >= least_recently_used(accesses, 4)
