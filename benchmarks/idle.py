"""Whether anyone else uses the processors, from ``/proc``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal
_STAT_UTIME = 11  # fields of /proc/PID/stat after the name; utime and stime are the 14th and 15th of all
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    busy_s: float
    own_s: float


class IdleMeter:
    """Measures the processor time that others used since :meth:`start`, in processors.

    Args:
        own: Processes whose time is ours; the calling one is always counted.
    """

    def __init__(self, own: Iterable[int] = ()) -> None:
        self._own = tuple(own)
        self._first = self._sample()

    def others(self) -> float:
        """Processors that others kept busy, on average since the meter was made."""
        now = self._sample()
        wall = max(now.at_s - self._first.at_s, _TICK_S)
        busy = (now.busy_s - self._first.busy_s) - (now.own_s - self._first.own_s)
        return max(0.0, busy / wall)

    def _sample(self) -> _Sample:
        busy = busy_ticks((_PROC / "stat").read_text(encoding="ascii")) * _TICK_S
        own = time.process_time() + sum(_process_s(pid) for pid in self._own)
        return _Sample(time.perf_counter(), busy, own)


def busy_ticks(stat: str) -> int:
    """Clock ticks that all processors were busy, from the text of ``/proc/stat``."""
    fields = stat.partition("\n")[0].split()[1:]
    return sum(int(fields[place]) for place in _BUSY_FIELDS)


def process_ticks(stat: str) -> int:
    """User and system ticks of a process, from the text of its ``stat``; its name may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[_STAT_UTIME]) + int(fields[_STAT_UTIME + 1])


def _process_s(pid: int) -> float:
    try:
        return process_ticks((_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")) * _TICK_S
    except FileNotFoundError:
        return 0.0


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, shared pages included."""
    for line in (_PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} states no resident set")
