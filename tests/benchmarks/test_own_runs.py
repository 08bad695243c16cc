from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from benchmarks import own_runs
from benchmarks.flops import ModelCost
from benchmarks.machine import IdleCheck
from benchmarks.messages import Command, PhaseResult, Profile, ReadProfile, Reply, RunPhase, Started
from benchmarks.records import FaultRecord, MemoryRecord, ProfileRecord, RecordFile
from benchmarks.session import Session
from benchmarks.vocabulary import load_vocabulary
from benchmarks.workloads import build_workload
from tests.helpers.tiny import tiny_config

VOCABULARY = load_vocabulary()
COST = ModelCost(config=tiny_config())
MIB = 1 << 20


class FakeWorker:
    """Runs phases in no time; ten positions a row."""

    pid = 7

    def __init__(self) -> None:
        self.phases: list[RunPhase] = []

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        yield

    def ask(self, command: Command, kind: type[Reply]) -> Reply:
        del kind
        if isinstance(command, ReadProfile):
            return Profile(operations={}, stages={}, steps=1)
        assert isinstance(command, RunPhase)
        self.phases.append(command)
        rows = command.phase.num_rows
        return PhaseResult(1.0, rows, 10 * rows, 10 * rows, None, (), computed_by_row=(10,) * rows)


class FakeGauge:
    """Every look at the machine finds it faster by 100 GFLOP/s."""

    def __init__(self) -> None:
        self._rate = 0.0

    def check(self) -> IdleCheck:
        self._rate += 100.0
        return IdleCheck(others=0.0, gemm_gflops=self._rate, good=True)


class FakeSession:
    def __init__(self, facts: dict[str, int] | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.worker = FakeWorker()
        self.gauge = FakeGauge()
        self._facts = facts or {}

    @contextlib.contextmanager
    def extra_system(self, name: str, **options: str) -> Iterator[tuple[FakeWorker, Started]]:
        self.asked.append((name, options))
        yield self.worker, Started("", "", self._facts)


def run_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: Sequence[int],
    *,
    kv_bytes: int = COST.kv_bytes_per_token,
    pool_tokens: int = 50,
) -> tuple[MemoryRecord, list[str], list[int]]:
    """The record, the faults, and the processes whose memory was read."""
    left, pids = list(sizes), []

    def resident(pid: int) -> int:
        pids.append(pid)
        return left.pop(0)

    monkeypatch.setattr(own_runs, "resident_bytes", resident)
    facts = {
        "base_bytes": 100 * MIB,
        "weight_bytes": MIB,
        "kv_bytes_per_token": kv_bytes,
        "pool_tokens": pool_tokens,
        "step_tokens": 8,
        "pid": 99,
    }
    record_file = RecordFile(tmp_path / "records.jsonl")
    own_runs.run_memory(
        cast(Session, FakeSession(facts)),
        build_workload("W6", "tiny", VOCABULARY),
        systems=["ours-http"],
        requests=len(sizes),
        cost=COST,
        record_file=record_file,
    )
    record, *faults = record_file.records
    assert isinstance(record, MemoryRecord)
    return record, [fault.message for fault in faults if isinstance(fault, FaultRecord)], pids


def test_memory_of_the_server_is_read_and_a_flat_one_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, faults, pids = run_memory(tmp_path, monkeypatch, [90 * MIB, *[100 * MIB] * 7])

    assert (record.system, record.requests, record.computed) == (
        "ours-http",
        tuple(range(1, 9)),
        tuple(range(10, 90, 10)),
    )
    assert faults == []
    assert set(pids) == {99}


def test_memory_that_goes_on_growing_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, faults, _ = run_memory(tmp_path, monkeypatch, [*[90 * MIB] * 4, *(size * MIB for size in (100, 102, 104, 106))])

    (fault,) = faults
    assert "the resident set grew by 6,291,456 bytes over the second half of 8 requests" in fault


def test_growth_while_the_pool_fills_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = [*[90 * MIB] * 4, *(size * MIB for size in (100, 102, 104, 106))]

    record, faults, _ = run_memory(tmp_path, monkeypatch, growing, pool_tokens=51)

    assert record.growth_bytes is None
    assert faults == []


def test_more_memory_than_the_parts_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, faults, _ = run_memory(tmp_path, monkeypatch, [120 * MIB] * 8)

    (fault,) = faults
    assert "bytes are resident" in fault


def test_kv_bytes_that_differ_from_the_formula_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, faults, _ = run_memory(tmp_path, monkeypatch, [100 * MIB] * 8, kv_bytes=1)

    (fault,) = faults
    assert fault == f"1 bytes of KV per token; {COST.kv_bytes_per_token} by formula"


def test_profile_runs_every_workload_in_other_words_each_repeat_and_fills_unrecorded(tmp_path: Path) -> None:
    session = FakeSession()
    record_file = RecordFile(tmp_path / "records.jsonl")
    plan = {"ours": [build_workload(name, "tiny", VOCABULARY) for name in ("W2", "W4")]}

    own_runs.run_profile(cast(Session, session), plan, VOCABULARY, record_file, repeats=2)

    found = [record for record in record_file.records if isinstance(record, ProfileRecord)]
    assert [(one.workload, one.phase, one.repeat) for one in found] == [
        *(("W2", "cold", 0), ("W2", "warm", 0), ("W4", "warm", 0)),
        *(("W2", "cold", 1), ("W2", "warm", 1), ("W4", "warm", 1)),
    ]
    assert [name for name, options in session.asked if options["profile"] == "yes"] == ["ours"]
    bodies = [command.phase.groups[0].body for command in session.worker.phases if command.phase.name == "cold"]
    assert len(set(bodies)) == 2
    # the look after one phase is the look before the next
    assert [one.calibration for one in found[:3]] == [(100.0, 200.0), (200.0, 300.0), (400.0, 500.0)]
