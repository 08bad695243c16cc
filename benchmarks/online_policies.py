"""Hit counts of simple caches that do not know what comes, to hold a realised one against."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence


def recency_hits(accesses: Sequence[Hashable], *, capacity: int) -> int:
    """Accesses that a cache of ``capacity`` items finds there, if it evicts the least recently used."""
    held: OrderedDict[Hashable, None] = OrderedDict()
    hits = 0
    for item in accesses:
        if item in held:
            hits += 1
            held.move_to_end(item)
            continue
        held[item] = None
        if len(held) > capacity:
            held.popitem(last=False)
    return hits


def frequency_hits(accesses: Sequence[Hashable], *, capacity: int) -> int:
    """The same, if it evicts the least often used so far, of equals the least recently used.

    Counts outlive eviction. What has just come in may stay.
    """
    held: set[Hashable] = set()
    uses: Counter[Hashable] = Counter()
    last: dict[Hashable, int] = {}
    hits = 0
    for place, item in enumerate(accesses):
        uses[item] += 1
        last[item] = place
        if item in held:
            hits += 1
            continue
        held.add(item)
        if len(held) > capacity:
            held.remove(min(held - {item}, key=lambda one: (uses[one], last[one]), default=item))
    return hits
