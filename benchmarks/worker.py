"""The process of one system: commands come in on standard input, replies go out, one line each."""

from __future__ import annotations

import os
import statistics
import sys
import time
import traceback
from typing import BinaryIO

import msgspec

from benchmarks.measure import run_phase
from benchmarks.messages import (
    Command,
    Done,
    Failed,
    Forget,
    GemmRate,
    MeasureGemm,
    Profile,
    ReadProfile,
    Reply,
    RunPhase,
    ScorePrompts,
    Scores,
    Start,
    Stop,
)
from benchmarks.systems.contract import Profilable, System, SystemUnavailableError
from benchmarks.systems.registry import make_system
from benchmarks.vocabulary import load_vocabulary
from benchmarks.workloads import Group

_GEMM_SHAPE = (2048, 576, 3072)


class Worker:
    """Carries out commands on one system."""

    def __init__(self) -> None:
        self._system: System | None = None

    def obey(self, command: Command) -> Reply:  # noqa: PLR0911  one return a command
        match command:
            case Start():
                self._system = make_system(command, load_vocabulary().labels)
                return self._system.started()
            case ScorePrompts(prompts=prompts, exact=True):
                return Scores(self.system.exact_scores(prompts))
            case ScorePrompts(prompts=prompts):
                return Scores(self.system.submit(Group((), (), prompts), "prompts").result().log_odds)
            case RunPhase():
                return run_phase(self.system, command)
            case ReadProfile():
                return self._profile()
            case MeasureGemm():
                return GemmRate(gemm_gflops(command.threads, command.seconds))
            case Forget():
                self.system.forget()
            case Stop():
                self.close()
        return Done()

    @property
    def system(self) -> System:
        if self._system is None:
            raise SystemUnavailableError("no system was started in this process")
        return self._system

    def close(self) -> None:
        if self._system is not None:
            self._system.close()

    def _profile(self) -> Profile:
        if not isinstance(self.system, Profilable):
            raise SystemUnavailableError("this system does not say where its time went")
        return self.system.profile()


def gemm_gflops(threads: int, seconds: float) -> float:
    """Median rate of the calibration product over ``seconds``, after three that do not count."""
    import torch  # noqa: PLC0415  only the process that is asked for this needs it

    torch.set_num_threads(threads)
    rows, inner, columns = _GEMM_SHAPE
    x, weight = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 6 or time.perf_counter() < until:
        began = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        times.append(time.perf_counter() - began)
    return 2 * rows * inner * columns / statistics.median(times[3:]) / 1e9


def serve(commands: BinaryIO, replies: BinaryIO) -> None:
    """Obey until told to stop or until the commands end."""
    worker = Worker()
    decoder = msgspec.json.Decoder(Command)
    try:
        for line in commands:
            command = decoder.decode(line)
            try:
                reply = worker.obey(command)
            except Exception as error:  # noqa: BLE001  the harness decides what a failure means
                reply = Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
            replies.write(msgspec.json.encode(reply) + b"\n")
            replies.flush()
            if isinstance(command, Stop):
                return
    finally:
        worker.close()


def main() -> None:
    # libraries print; only replies may go where the harness reads
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
