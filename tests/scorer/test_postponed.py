from __future__ import annotations

import threading

import pytest

from scorer.postponed import MOST_CALLS, PostponedCalls


def test_calls_are_made_when_asked_for_in_their_order_and_once() -> None:
    made: list[int] = []
    calls = PostponedCalls()
    for number in range(5):
        calls.postpone(made.append, number)
    assert made == []

    calls.make()
    calls.make()

    assert made == [0, 1, 2, 3, 4]


def test_no_more_than_the_limit_are_kept() -> None:
    made: list[int] = []
    calls = PostponedCalls()

    for number in range(MOST_CALLS + 1):
        calls.postpone(made.append, number)

    assert made == list(range(MOST_CALLS))


def test_a_call_that_raises_is_dropped_and_those_after_it_are_made_next_time() -> None:
    made: list[int] = []
    calls = PostponedCalls()
    calls.postpone(int, "no number")
    calls.postpone(made.append, 1)

    with pytest.raises(ValueError, match="no number"):
        calls.make()
    calls.make()

    assert made == [1]


def test_who_asks_while_another_thread_makes_them_returns_after_the_last() -> None:
    began, may_end = threading.Event(), threading.Event()
    made: list[str] = []
    calls = PostponedCalls()

    def slow() -> None:
        began.set()
        assert may_end.wait(timeout=60)
        made.append("slow")

    def ask() -> None:
        calls.make()
        made.append("asked")

    calls.postpone(slow)
    maker = threading.Thread(target=calls.make)
    maker.start()
    assert began.wait(timeout=60)
    asker = threading.Thread(target=ask)
    asker.start()
    may_end.set()
    maker.join()
    asker.join()

    assert made == ["slow", "asked"]
