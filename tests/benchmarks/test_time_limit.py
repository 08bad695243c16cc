from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest

from benchmarks.time_limit import repeats_in_time


def repeats(durations: Sequence[float], *, until_s: float | None) -> list[int]:
    """Numbers that come if repeats take ``durations``, from second 10 on."""
    times = iter([time for start, end in pairwise(accumulate(durations, initial=10.0)) for time in (start, end)])
    return list(repeats_in_time(len(durations), until_s=until_s, clock=lambda: next(times)))


@pytest.mark.parametrize(
    ("durations", "until_s", "wanted"),
    [
        ([5.0] * 4, None, [0, 1, 2, 3]),
        ([5.0] * 4, 25.0, [0, 1, 2]),
        ([5.0] * 4, 24.9, [0, 1]),
        # the longest counts, not the last: 4 s are left for what took 6 s once
        ([6.0, 2.0, 2.0], 22.0, [0, 1]),
    ],
)
def test_no_repeat_begins_that_would_end_too_late(
    durations: list[float], until_s: float | None, wanted: list[int]
) -> None:
    assert repeats(durations, until_s=until_s) == wanted


def test_first_repeat_comes_whatever_the_limit() -> None:
    assert repeats([5.0] * 3, until_s=0.0) == [0]
