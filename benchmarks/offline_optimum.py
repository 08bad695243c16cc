"""The best hit rate that a cache of a given size could have had, knowing all requests ahead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def best_hits(accesses: Sequence[Hashable], *, item_units: int, capacity_units: int) -> int:
    """Units found in the cache over all accesses under the rule of Belady (1966).

    Every access wants the ``item_units`` equal units of one item; what is not there is fetched.
    The cache then keeps the units whose next use is nearest, those just fetched among them (it
    need not keep what it fetched). Items may be kept in part. No cache of ``capacity_units``
    can do better.
    """
    next_use: list[float] = [float("inf")] * len(accesses)
    seen: dict[Hashable, int] = {}
    for place in range(len(accesses) - 1, -1, -1):
        next_use[place] = seen.get(accesses[place], float("inf"))
        seen[accesses[place]] = place
    held: dict[Hashable, int] = {}
    due: dict[Hashable, float] = {}
    used = hits = 0
    for item, use in zip(accesses, next_use, strict=True):
        found = held.pop(item, 0)
        hits += found
        used -= found
        if use == float("inf"):
            continue
        held[item], due[item] = item_units, use
        used += item_units
        while used > capacity_units:
            last = max(held, key=due.__getitem__)
            drop = min(held[last], used - capacity_units)
            used -= drop
            held[last] -= drop
            if not held[last]:
                del held[last]
    return hits
