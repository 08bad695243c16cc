"""How many repeats fit into the time that a run was given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def repeats_in_time(most: int, *, until_s: float | None, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Numbers of the repeats, as long as the next would end in time if it took as long as the longest so far.

    The first always comes. What the caller does between two numbers counts as a repeat.

    Args:
        until_s: Time of ``clock`` by which the last repeat should have ended; None: no limit.
    """
    longest = 0.0
    for repeat in range(most):
        began = clock()
        if repeat and until_s is not None and began + longest > until_s:
            return
        yield repeat
        longest = max(longest, clock() - began)
