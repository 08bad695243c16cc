"""One system on one workload, once, between two looks at the machine."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.machine import Gauge, IdleCheck
from benchmarks.messages import Done, Forget, PhaseResult, RunPhase
from benchmarks.progress import tell
from benchmarks.records import FaultRecord, PhaseRecord, RecordFile
from benchmarks.summary import digits
from benchmarks.systems.catalogue import SystemSpec
from benchmarks.token_counts import PerfectCache, Work
from benchmarks.vocabulary import Vocabulary
from benchmarks.worker_process import WorkerProcess
from benchmarks.workloads import Phase, Workload, trimmed, variant, warm_up_phase

LOADS = (0.3, 0.6, 0.9)
VARIANTS_PER_BLOCK = 1 + len(LOADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemProcess:
    """A system of the run and the process it lives in."""

    spec: SystemSpec
    worker: WorkerProcess

    @property
    def knows_its_tokens(self) -> bool:
        """It is sent token ids, so that what a perfect cache computes is known for it."""
        return self.spec.kind != "ours-http"


@dataclass(frozen=True, slots=True)
class _Timed:
    phase: Phase
    variant: int
    work: Work
    result: PhaseResult


class BlockRunner:
    """Runs blocks and records them.

    A block in which the machine was not idle, before or after, is run again with other words,
    at most ``retries`` times; the last is kept and marked.
    """

    def __init__(self, gauge: Gauge, vocabulary: Vocabulary, record_file: RecordFile, *, retries: int) -> None:
        self._gauge = gauge
        self._vocabulary = vocabulary
        self._file = record_file
        self._retries = retries

    def variants_per_repeat(self) -> int:
        return (1 + self._retries) * VARIANTS_PER_BLOCK

    def run(self, process: SystemProcess, workload: Workload, repeat: int) -> list[PhaseRecord]:
        """Run a block until the machine was idle around it, and record it.

        Raises:
            WorkerError: the system failed.
        """
        for attempt in range(1 + self._retries):
            number = repeat * self.variants_per_repeat() + attempt * VARIANTS_PER_BLOCK
            before = self._gauge.check()
            timed = self._run_once(process, workload, number)
            after = self._gauge.check()
            if before.good and after.good:
                break
            tell(f"{workload.name} {process.spec.name}: the machine was not idle ({_worse(before, after)})")
        idle = before.good and after.good
        records = [
            PhaseRecord(
                workload=workload.name,
                phase=part.phase.name,
                system=process.spec.name,
                repeat=repeat,
                variant=part.variant,
                idle=idle,
                others=max(before.others, after.others),
                calibration=(before.gemm_gflops, after.gemm_gflops),
                groups=len(part.phase.groups),
                num_rows=part.phase.num_rows,
                work=part.work if process.knows_its_tokens else None,
                result=part.result,
            )
            for part in timed
        ]
        for record in records:
            self._file.add(record)
            if process.spec.kind == "ours":
                self._check_work(record)
        tell(f"{workload.name} {process.spec.name} #{repeat + 1}: {_rates(records)}")
        return records

    def _run_once(self, process: SystemProcess, workload: Workload, number: int) -> list[_Timed]:
        worker = process.worker
        with worker.awake():
            worker.ask(Forget(), Done)
            worker.ask(RunPhase(warm_up_phase(self._vocabulary, number), f"warm-up/{number}"), PhaseResult)
            if not any(phase.kind == "open_loop" for phase in workload.phases):
                return self._phases(process, workload, number)
            timed = [_named(part, "capacity") for part in self._phases(process, workload, number)]
            requests = next(len(phase.groups) for phase in workload.phases if phase.kind == "open_loop")
            capacity = requests / timed[-1].result.wall_s
            for place, load in enumerate(LOADS, start=1):
                parts = self._phases(process, workload, number + place, rate=load * capacity)
                timed += [_named(part, f"{load:.0%}") for part in parts]
            return timed

    def _phases(
        self, process: SystemProcess, workload: Workload, number: int, rate: float | None = None
    ) -> list[_Timed]:
        timed = []
        cache = PerfectCache()
        for phase in variant(workload, number, self._vocabulary).phases:
            if process.spec.most_tokens is not None and phase.name == "warm":
                continue  # without reuse the same as cold
            cut = phase if process.spec.most_tokens is None else trimmed(phase, process.spec.most_tokens)
            result = process.worker.ask(RunPhase(cut, f"{workload.name}/{number}", rate), PhaseResult)
            work = cache.run(cut)
            if phase.kind != "fill":
                timed.append(_Timed(phase, number, work, result))
        return timed

    def _check_work(self, record: PhaseRecord) -> None:
        """Every position once: what steps ran, what rows were told, and the count of the judge are equal."""
        assert record.work
        told, ran, unique = sum(record.result.computed_by_row), record.result.computed, record.work.unique
        if not told == ran == unique:
            message = (
                f"{record.workload} {record.phase} #{record.repeat + 1}: {ran} positions were computed "
                f"({told} by the rows' usage), {unique} are unique"
            )
            self._file.add(FaultRecord(record.system, message))
            tell(f"FAULT {record.system}: {message}")


def _named(part: _Timed, name: str) -> _Timed:
    return _Timed(Phase(name, part.phase.kind, part.phase.groups), part.variant, part.work, part.result)


def _worse(before: IdleCheck, after: IdleCheck) -> str:
    others, rate = max(before.others, after.others), min(before.gemm_gflops, after.gemm_gflops)
    return f"others used {others:.2f} processors, matrix products {rate:.0f} GFLOP/s"


def _rates(records: list[PhaseRecord]) -> str:
    return ", ".join(f"{record.phase} {digits(record.rows_per_s)} rows/s" for record in records)
