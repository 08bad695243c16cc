from __future__ import annotations

import os

import pytest

from benchmarks.idle import IdleMeter, busy_ticks, process_ticks, resident_bytes

STAT = "cpu  100 20 30 4000 50 6 7 8 900 90\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n"
PROCESS = "42 (a (strange) name) S 1 42 42 0 -1 4194304 1 2 3 4 300 70 5 6 20 0 1 0 9 9 9"


def test_busy_is_user_nice_system_interrupts_and_what_a_host_took_away() -> None:
    # idle and waiting for input are not; guest time is in user time already
    assert busy_ticks(STAT) == 100 + 20 + 30 + 6 + 7 + 8


def test_process_time_is_found_behind_any_name() -> None:
    assert process_ticks(PROCESS) == 300 + 70


def test_own_work_does_not_count_as_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0])
    busy = iter([STAT, STAT.replace("cpu  100", "cpu  250")])
    own = iter([5.0, 6.2])
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    monkeypatch.setattr("time.process_time", lambda: next(own))
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: next(busy))

    others = IdleMeter().others()

    assert others == pytest.approx(150 * tick_s - 1.2)


def test_resident_set_of_this_process_is_what_the_kernel_says() -> None:
    size = resident_bytes(os.getpid())

    assert 1 << 20 < size < 1 << 36
    assert size % 1024 == 0


def test_process_that_is_gone_has_no_resident_set() -> None:
    with pytest.raises(FileNotFoundError):
        resident_bytes(2**22 + 1)
