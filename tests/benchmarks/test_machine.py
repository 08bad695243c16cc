from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import pytest

from benchmarks import machine
from benchmarks.machine import Gauge, IdleCheck
from benchmarks.messages import Command, GemmRate, MeasureGemm, Reply
from benchmarks.worker_process import WorkerProcess


class FakeWorker:
    """Multiplies matrices at the rates it is given."""

    def __init__(self, rates: list[float]) -> None:
        self._rates = rates

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        yield

    def ask(self, command: Command, kind: type[Reply]) -> Reply:
        del kind
        assert isinstance(command, MeasureGemm)
        return GemmRate(self._rates.pop(0))


class FakeMeter:
    """Finds others using a part of a processor."""

    used = 0.0

    def others(self) -> float:
        return self.used


def last_check(monkeypatch: pytest.MonkeyPatch, rates: list[float], *, others: float = 0.0) -> IdleCheck:
    """The last of as many looks as there are rates, the first five of which are read at the start."""
    monkeypatch.setattr(machine, "IdleMeter", FakeMeter)
    monkeypatch.setattr(FakeMeter, "used", others)
    monkeypatch.setattr("time.sleep", lambda _: None)
    num_checks = len(rates) - 5
    gauge = Gauge(cast(WorkerProcess, FakeWorker(rates)), threads=1, most_others=0.1, gemm_floor=0.95)
    return [gauge.check() for _ in range(num_checks)][-1]


@pytest.mark.parametrize(("rate", "good"), [(951.0, True), (949.0, False)])
def test_idle_machine_multiplies_nearly_as_fast_as_ever(
    rate: float, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = last_check(monkeypatch, [1000.0] * 5 + [rate])

    assert (check.gemm_gflops, check.good) == (rate, good)


def test_one_freak_reading_is_no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_check(monkeypatch, [1000.0] * 20 + [2300.0, 1000.0]).good


def test_machine_that_others_use_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    check = last_check(monkeypatch, [1000.0] * 6, others=0.2)

    assert (check.others, check.good) == (0.2, False)
