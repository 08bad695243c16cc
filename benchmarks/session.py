"""A run from its first process to its last record."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from benchmarks.aims import MOST_DRIFT, MOST_MEAN_DRIFT
from benchmarks.blocks import BlockRunner, SystemProcess
from benchmarks.machine import Gauge
from benchmarks.messages import ScorePrompts, Scores, Start, Started
from benchmarks.options import Options
from benchmarks.progress import tell
from benchmarks.records import DriftRecord, FaultRecord, RecordFile, SystemRecord
from benchmarks.summary import drift
from benchmarks.systems.catalogue import SPECS, SystemSpec
from benchmarks.time_limit import repeats_in_time
from benchmarks.vocabulary import Vocabulary
from benchmarks.worker_process import WorkerError, WorkerProcess
from benchmarks.workloads import Workload


class Session:
    """Processes of the systems, stopped except while their block runs."""

    def __init__(self, options: Options, model: Path, vocabulary: Vocabulary, record_file: RecordFile) -> None:
        self._options = options
        self._began = time.monotonic()
        self._model = model
        self._file = record_file
        self._open = contextlib.ExitStack()
        self._logs = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-")))
        self.processes: list[SystemProcess] = []
        worker = self._worker("gauge")
        self.gauge = Gauge(
            worker, threads=options.threads, most_others=options.most_others, gemm_floor=options.gemm_floor
        )
        self.blocks = BlockRunner(self.gauge, vocabulary, record_file, retries=options.retries)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def start_systems(self) -> None:
        """Start every system of the run; one that cannot start is recorded as a fault and left out."""
        for spec in self._options.systems:
            began = time.monotonic()
            try:
                worker, started = self._start(spec)
            except WorkerError as error:
                self._fault(spec.name, error)
                continue
            self._file.add(SystemRecord(spec.name, started.version, started.settings, started.facts))
            self.processes.append(SystemProcess(spec=spec, worker=worker))
            tell(f"{spec.name} is ready after {time.monotonic() - began:.0f} s: {started.version}")

    @contextlib.contextmanager
    def extra_system(self, name: str, **options: str) -> Iterator[tuple[WorkerProcess, Started]]:
        """The system ``name`` with other settings, for the length of the block; stopped unless awake.

        Raises:
            WorkerError: it cannot start.
        """
        spec = replace(SPECS[name], options=options)
        worker = WorkerProcess("extra", threads=self._options.threads, log=self._logs / "extra.log")
        try:
            with worker.awake():
                started = worker.ask(self._start_command(spec), Started)
            yield worker, started
        finally:
            worker.close()

    def compare_scores(self, prompts: tuple[tuple[int, ...], ...]) -> None:
        """Score the check prompts with every system and record how far the results lie apart.

        The reference is transformers in float32; without it, in a quick run, the first system.
        """
        reference_name = "transformers float32" if self._options.reference else ""
        reference = self._exact_scores(prompts) if self._options.reference else None
        for process in [process for process in self.processes if process.knows_its_tokens]:
            with process.worker.awake():
                scores = process.worker.ask(ScorePrompts(prompts), Scores).log_odds
            if reference is None:
                reference_name, reference = process.spec.name, scores
                continue
            found = drift(scores, reference)
            record = DriftRecord(process.spec.name, reference_name, found.mean, found.largest, found.flips)
            self._file.add(record)
            tell(
                f"{record.system}: log-odds of {len(prompts)} prompts differ from {record.reference} "
                f"by {record.mean:.3f} on average, {record.largest:.3f} at most"
            )
            ours = process.spec.name == "ours" and self._options.reference
            if ours and (record.mean > MOST_MEAN_DRIFT or record.largest > MOST_DRIFT):
                message = (
                    f"log-odds differ from {record.reference} by {record.mean:.3f} on average and {record.largest:.3f} "
                    f"at most; {MOST_MEAN_DRIFT} and {MOST_DRIFT} are promised"
                )
                self._file.add(FaultRecord(record.system, message))

    def run_blocks(self, workloads: Sequence[Workload]) -> None:
        """Alternate the systems, workload by workload, repeat by repeat; who begins changes.

        The time limit counts from the start of the session.
        """
        limit = self._options.time_limit_s
        until = None if limit is None else self._began + limit
        for repeat in repeats_in_time(self._options.repeats, until_s=until):
            for workload in workloads:
                tell(f"repeat {repeat + 1} of at most {self._options.repeats}: {workload.name}")
                self._run_round(workload, repeat)

    def _run_round(self, workload: Workload, repeat: int) -> None:
        turn = repeat % max(1, len(self.processes))
        for process in self.processes[turn:] + self.processes[:turn]:
            if workload.name in process.spec.workloads:
                self._run_block(process, workload, repeat)

    def _run_block(self, process: SystemProcess, workload: Workload, repeat: int) -> None:
        try:
            self.blocks.run(process, workload, repeat)
        except WorkerError as error:
            self._fault(process.spec.name, error)
            self.processes.remove(process)

    def _exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        holders = [process.worker for process in self.processes if process.spec.kind.startswith("hf-")]
        worker = holders[0] if holders else self._start(SPECS["hf-prefix"])[0]
        with worker.awake():
            return worker.ask(ScorePrompts(prompts, exact=True), Scores).log_odds

    def _start(self, spec: SystemSpec) -> tuple[WorkerProcess, Started]:
        worker = self._worker(spec.name)
        with worker.awake():
            return worker, worker.ask(self._start_command(spec), Started)

    def _start_command(self, spec: SystemSpec) -> Start:
        return Start(spec.kind, str(self._model), self._options.threads, spec.options)

    def _worker(self, name: str) -> WorkerProcess:
        worker = WorkerProcess(name, threads=self._options.threads, log=self._logs / f"{name}.log")
        self._open.callback(worker.close)
        return worker

    def _fault(self, system: str, error: WorkerError) -> None:
        tell(f"FAULT {system} is left out: {error}")
        self._file.add(FaultRecord(system, f"left out: {str(error).splitlines()[0]}"))
