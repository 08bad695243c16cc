from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from benchmarks.blocks import LOADS, BlockRunner, SystemProcess
from benchmarks.machine import Gauge, IdleCheck
from benchmarks.messages import Command, Done, Forget, PhaseResult, Reply, RunPhase
from benchmarks.options import parse
from benchmarks.records import FaultRecord, PhaseRecord, RecordFile, read_records
from benchmarks.systems.catalogue import SPECS, SystemSpec
from benchmarks.token_counts import PerfectCache
from benchmarks.vocabulary import load_vocabulary
from benchmarks.worker_process import WorkerProcess
from benchmarks.workloads import Workload, build_workload

VOCABULARY = load_vocabulary()
GOOD = IdleCheck(others=0.0, gemm_gflops=900.0, good=True)
BUSY = IdleCheck(others=1.0, gemm_gflops=300.0, good=False)


class FakeGauge:
    def __init__(self, *checks: IdleCheck) -> None:
        self._checks = list(checks)

    def check(self) -> IdleCheck:
        return self._checks.pop(0) if self._checks else GOOD


class FakeWorker:
    """Computes what a perfect cache computes, plus ``extra`` positions in every timed phase."""

    def __init__(self, extra: int = 0) -> None:
        self.commands: list[RunPhase] = []
        self._extra = extra
        self._caches: dict[str, PerfectCache] = {}

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        yield

    def ask(self, command: Command, kind: type[Reply]) -> Reply:
        if isinstance(command, Forget):
            return Done()
        assert isinstance(command, RunPhase)
        assert kind is PhaseResult
        self.commands.append(command)
        work = self._caches.setdefault(command.namespace, PerfectCache()).run(command.phase)
        rows = command.phase.num_rows
        computed = work.unique + self._extra
        shares = (computed - rows + 1, *(1,) * (rows - 1))
        return PhaseResult(2.0, rows, work.received, computed, None, (0.0,) * rows, computed_by_row=shares)


def run(
    tmp_path: Path, workload: Workload, *, gauge: FakeGauge, worker: FakeWorker, spec: SystemSpec, retries: int = 2
) -> tuple[list[PhaseRecord], RecordFile]:
    record_file = RecordFile(tmp_path / "records.jsonl")
    runner = BlockRunner(cast(Gauge, gauge), VOCABULARY, record_file, retries=retries)
    process = SystemProcess(spec=spec, worker=cast(WorkerProcess, worker))
    return runner.run(process, workload, 1), record_file


def tiny(name: str) -> Workload:
    return build_workload(name, "tiny", VOCABULARY)


def test_good_block_is_run_once_and_recorded_phase_by_phase(tmp_path: Path) -> None:
    worker = FakeWorker()

    records, record_file = run(tmp_path, tiny("W2"), gauge=FakeGauge(), worker=worker, spec=SPECS["ours"])

    assert [(record.phase, record.idle, record.repeat) for record in records] == [("cold", True, 1), ("warm", True, 1)]
    assert [command.phase.name for command in worker.commands] == ["warm-up", "cold", "warm"]
    assert read_records(tmp_path / "records.jsonl") == record_file.records == records


def test_block_beside_other_work_is_run_again_in_other_words(tmp_path: Path) -> None:
    worker = FakeWorker()

    records, _ = run(tmp_path, tiny("W1"), gauge=FakeGauge(GOOD, BUSY), worker=worker, spec=SPECS["ours"])

    timed = [command for command in worker.commands if command.phase.name == "cold"]
    assert len(timed) == 2
    assert timed[0].namespace != timed[1].namespace
    assert timed[0].phase.groups[0].tails[0][0] != timed[1].phase.groups[0].tails[0][0]
    assert len(records) == 1
    assert records[0].idle


def test_longest_run_has_words_of_its_own_for_every_block() -> None:
    most = parse(["--repeats", "20", "--retries", "5"])
    runner = BlockRunner(cast(Gauge, FakeGauge()), VOCABULARY, cast(RecordFile, None), retries=most.retries)

    assert most.repeats * runner.variants_per_repeat() <= len(VOCABULARY.ids)


def test_retries_are_bounded_and_the_last_is_marked(tmp_path: Path) -> None:
    worker = FakeWorker()

    records, _ = run(tmp_path, tiny("W1"), gauge=FakeGauge(*[BUSY] * 9), worker=worker, spec=SPECS["ours"], retries=1)

    assert sum(command.phase.name == "cold" for command in worker.commands) == 2
    assert (records[0].idle, records[0].others, records[0].calibration) == (False, 1.0, (300.0, 300.0))


@pytest.mark.parametrize("extra", [1, -1])
def test_position_computed_twice_or_never_is_a_fault_of_ours(tmp_path: Path, extra: int) -> None:
    _, record_file = run(tmp_path, tiny("W1"), gauge=FakeGauge(), worker=FakeWorker(extra=extra), spec=SPECS["ours"])

    (fault,) = [record for record in record_file.records if isinstance(record, FaultRecord)]
    assert "are unique" in fault.message


def test_peers_may_compute_what_they_like(tmp_path: Path) -> None:
    _, record_file = run(tmp_path, tiny("W1"), gauge=FakeGauge(), worker=FakeWorker(extra=9), spec=SPECS["vllm"])

    assert not any(isinstance(record, FaultRecord) for record in record_file.records)


def test_system_without_reuse_runs_first_rows_of_cold_phases_only(tmp_path: Path) -> None:
    spec = replace(SPECS["hf-pad"], most_tokens=150)

    records, _ = run(tmp_path, tiny("W2"), gauge=FakeGauge(), worker=FakeWorker(), spec=spec)

    (record,) = records
    assert record.phase == "cold"
    assert (record.result.num_rows, record.num_rows) == (2, 4)


def test_texts_of_the_service_are_not_held_against_the_token_count(tmp_path: Path) -> None:
    records, _ = run(tmp_path, tiny("W1"), gauge=FakeGauge(), worker=FakeWorker(extra=40), spec=SPECS["ours-http"])

    assert records[0].work is None


def test_open_loop_measures_capacity_then_loads_of_it_each_in_other_words(tmp_path: Path) -> None:
    worker = FakeWorker()

    records, _ = run(tmp_path, tiny("W7"), gauge=FakeGauge(), worker=worker, spec=SPECS["ours"])

    mixes = [command for command in worker.commands if command.phase.name == "mix"]
    # 4 requests in the 2 s of the fake
    assert [command.rate for command in mixes] == [None, *(pytest.approx(load * 4 / 2) for load in LOADS)]
    assert len({command.namespace for command in mixes}) == 4
    assert [record.phase for record in records] == ["capacity", "30%", "60%", "90%"]
    assert len({record.variant for record in records}) == 4
