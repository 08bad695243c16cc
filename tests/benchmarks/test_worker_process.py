from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.messages import Done, Forget, Scores, Start, Started
from benchmarks.worker_process import WorkerError, WorkerProcess


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess("tested", threads=1, log=tmp_path / "log")
    with contextlib.closing(process):
        yield process


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_process_is_stopped_unless_it_is_awake(worker: WorkerProcess) -> None:
    before = state_of(worker.pid)
    with worker.awake():
        during = state_of(worker.pid)
        with pytest.raises(WorkerError):
            worker.ask(Forget(), Done)  # answered, so it does run
    after = state_of(worker.pid)

    assert (before, after) == ("T", "T")
    assert during != "T"


def test_failure_of_a_command_is_told_and_the_process_goes_on(worker: WorkerProcess) -> None:
    with worker.awake():
        for _ in range(2):
            with pytest.raises(WorkerError, match="tested: SystemUnavailableError: no system was started"):
                worker.ask(Forget(), Done)


def test_unknown_system_is_told(worker: WorkerProcess) -> None:
    with worker.awake(), pytest.raises(WorkerError, match="no system is driven by 'theirs', only by ours"):
        worker.ask(Start("theirs", "", 1, {}), Started)


def test_process_that_ends_is_told_with_its_last_words(worker: WorkerProcess) -> None:
    worker.close()

    with pytest.raises(WorkerError, match="the process of tested ended with code 0"):
        worker.ask(Forget(), Scores)


def test_closing_ends_the_process(worker: WorkerProcess) -> None:
    worker.close()

    assert not Path(f"/proc/{worker.pid}").exists()
