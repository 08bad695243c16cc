from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from engine.device_clock import DeviceClock


class Event:
    """An event of a device that is three seconds behind, or not there yet."""

    arrived = True

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.records = 0

    def record(self) -> None:
        self.records += 1

    def query(self) -> bool:
        return self.arrived

    def elapsed_time(self, other: Event) -> float:
        assert self.records == other.records == 1
        return 3000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> DeviceClock:
    event: Any = Event
    monkeypatch.setattr(torch.cuda, "Event", event)
    return DeviceClock(torch.device("cuda"))


def host_times(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    left = iter(times)
    monkeypatch.setattr(time, "perf_counter", lambda: next(left))


def run(clock: DeviceClock) -> float:
    clock.start()
    clock.stop()
    return clock.seconds()


def test_a_cpu_is_timed_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = DeviceClock(torch.device("cpu"))
    host_times(monkeypatch, 10.0, 10.5)

    assert run(clock) == 0.5


def test_a_device_is_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch, clock: DeviceClock) -> None:
    host_times(monkeypatch, 10.0, 10.5)

    assert run(clock) == 3.0


def test_work_that_nobody_has_waited_for_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, clock: DeviceClock) -> None:
    host_times(monkeypatch, 10.0, 10.5)
    monkeypatch.setattr(Event, "arrived", False)

    assert run(clock) == 0.5
