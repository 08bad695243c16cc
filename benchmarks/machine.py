"""What this machine is, how fast it is at the moment, and whether it is ours alone."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.idle import IdleMeter
from benchmarks.messages import GemmRate, MeasureGemm
from benchmarks.summary import percentile
from benchmarks.worker_process import WorkerProcess

_IDLE_WINDOW_S = 0.4
_GEMM_S = 0.3
_FIRST_READINGS = 5
_CEILING_PERCENT = 90
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "litestar", "uvicorn", "msgspec")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCheck:
    """One look at the machine while no system runs.

    Args:
        others: Processors that other processes kept busy.
        gemm_gflops: Rate of the calibration product just after.
        good: Both are within the limits.
    """

    others: float
    gemm_gflops: float
    good: bool


class Gauge:
    """Looks at the machine between measurements.

    Args:
        most_others: Processors that others may keep busy.
        gemm_floor: Least share of the best calibration rate seen, freak readings left out.
    """

    def __init__(self, worker: WorkerProcess, *, threads: int, most_others: float, gemm_floor: float) -> None:
        self._worker = worker
        self._threads = threads
        self._most_others = most_others
        self._gemm_floor = gemm_floor
        self.readings: list[float] = []
        for _ in range(_FIRST_READINGS):
            self._read_gemm()

    def check(self) -> IdleCheck:
        meter = IdleMeter()
        time.sleep(_IDLE_WINDOW_S)
        others = meter.others()
        rate = self._read_gemm()
        ceiling = percentile(self.readings, _CEILING_PERCENT)
        good = others <= self._most_others and rate >= self._gemm_floor * ceiling
        return IdleCheck(others=others, gemm_gflops=rate, good=good)

    def _read_gemm(self) -> float:
        with self._worker.awake():
            rate = self._worker.ask(MeasureGemm(self._threads, _GEMM_S), GemmRate).gflops
        self.readings.append(rate)
        return rate


def describe_machine() -> Mapping[str, str | int]:
    """Processor, memory and versions, for the record."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    pairs = [line.split(":", 1) for line in cpu.partition("\n\n")[0].splitlines() if ":" in line]
    fields = {name.strip(): value.strip() for name, value in pairs}
    features = [name for name in ("avx512_bf16", "avx512_vnni", "amx_bf16") if name in fields.get("flags", "").split()]
    memory = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith("MemTotal:")
    )
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES if _is_installed(name)}
    return {
        "processor": fields.get("model name", platform.machine()),
        "family_model_stepping": "/".join(fields.get(name, "?") for name in ("cpu family", "model", "stepping")),
        "features": " ".join(features),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
    }


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
