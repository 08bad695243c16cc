from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from benchmarks.measure import run_phase
from benchmarks.messages import PhaseResult, RunPhase, Started
from benchmarks.systems.contract import Answer
from benchmarks.systems.futures import combined, done
from benchmarks.workloads import Group, Phase, PhaseKind

GROUPS = (Group((1,), (2,), ((3,), (4, 5))), Group((1,), (6,), ((7,),)))


class Fake:
    """Scores a row by its last token, at once; remembers what it was asked, and in which order."""

    is_remote = False

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.asked: list[tuple[tuple[int, ...], str]] = []
        self.computed = 100
        self._before = before

    def started(self) -> Started:
        return Started("", "", {})

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        self._before()
        self.asked += [(group.prefix + tail, namespace) for tail in group.tails]
        self.computed += 7
        rows = len(group.tails)
        return done(
            Answer(
                log_odds=tuple(float(tail[-1]) for tail in group.tails),
                cached_by_row=(2,) * rows,
                computed_by_row=(1,) * rows,
            )
        )

    def computed_tokens(self) -> int | None:
        return self.computed

    def exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        raise NotImplementedError

    def forget(self) -> None: ...

    def close(self) -> None: ...


def run(kind: PhaseKind, system: Fake, *, gaps: tuple[float, ...] = (), rate: float | None = None) -> PhaseResult:
    return run_phase(system, RunPhase(Phase("p", kind, GROUPS, gaps), "space", rate))


def test_together_sends_whole_groups_and_keeps_their_order() -> None:
    system = Fake()

    result = run("together", system)

    assert result.log_odds == (3.0, 5.0, 7.0)
    assert system.asked == [((1, 2, 3), "space"), ((1, 2, 4, 5), "space"), ((1, 6, 7), "space")]
    assert (result.num_rows, result.received, result.computed) == (3, 3 + 4 + 3, 2 * 7)
    assert result.cached_by_row == (2, 2, 2)
    assert result.latencies_s == ()
    assert result.wall_s > 0


def test_one_by_one_times_every_row() -> None:
    result = run("one_by_one", Fake())

    assert len(result.latencies_s) == result.num_rows == 3
    assert result.computed == 3 * 7
    assert sum(result.latencies_s) <= result.wall_s


def test_open_loop_without_a_rate_is_run_together() -> None:
    assert run("open_loop", Fake(), gaps=(1.0, 1.0)).latencies_s == ()


def test_open_loop_counts_the_wait_of_a_request_that_could_not_be_sent_when_it_was_due() -> None:
    def stall() -> None:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass

    # both are due at the very start; the client is busy with the first when the second is due
    result = run("open_loop", Fake(stall), gaps=(0.0, 0.0), rate=1.0)

    assert len(result.latencies_s) == 2
    assert result.latencies_s[0] >= 0.02
    assert result.latencies_s[1] >= 0.04
    assert result.late_s >= 0.02


def test_open_loop_sends_at_the_rate_that_is_asked_for() -> None:
    result = run("open_loop", Fake(), gaps=(1.0, 3.0), rate=400.0)

    # the second request is due after 4 units of 1 / 400 s
    assert result.wall_s >= 4 / 400
    assert result.log_odds == (3.0, 5.0, 7.0)


def test_system_that_does_not_count_leaves_computed_open() -> None:
    class Silent(Fake):
        def computed_tokens(self) -> None:
            return None

    assert run("together", Silent()).computed is None


def test_time_of_forward_passes_is_kept_where_a_system_tells_it() -> None:
    class Telling(Fake):
        def submit(self, group: Group, namespace: str) -> Future[Answer]:
            (row,) = super().submit(group, namespace).result().log_odds
            return done(Answer(log_odds=(row,), forward_s=row / 10))

    assert run("one_by_one", Telling()).forwards_s == (0.3, 0.5, 0.7)
    assert run("one_by_one", Fake()).forwards_s == ()


def test_client_time_is_told_for_remote_systems_only() -> None:
    class Remote(Fake):
        is_remote = True

    assert run("together", Fake()).client_s is None
    assert run("together", Remote()).client_s is not None


def test_combined_waits_for_all_and_keeps_their_order() -> None:
    parts: list[Future[int]] = [Future(), Future()]
    whole = combined(parts, sum)
    parts[1].set_result(2)
    assert not whole.done()

    parts[0].set_result(1)

    assert whole.result(0) == 3


def test_combined_hands_an_error_on() -> None:
    parts: list[Future[int]] = [Future(), Future()]
    whole = combined(parts, sum)
    parts[0].set_exception(ValueError("lost"))
    parts[1].set_result(2)

    with pytest.raises(ValueError, match="lost"):
        whole.result(0)


def test_combined_of_nothing_is_done() -> None:
    nothing: list[Future[int]] = []

    assert combined(nothing, sum).result(0) == 0
