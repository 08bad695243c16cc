"""What this process may use of its host: processors and memory, within its container's limits."""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_processors(cgroup: Path = CGROUP) -> int:
    """Processors that this process may run on at one time, at least 1.

    A container that is limited to two processors of a large host still sees all of them;
    more threads than its share of time are throttled together.
    """
    processors = len(os.sched_getaffinity(0))
    limit = cgroup / "cpu.max"
    if limit.exists():
        quota, period = limit.read_text(encoding="ascii").split()
        if quota != "max":
            processors = min(processors, math.ceil(int(quota) / int(period)))
    return max(1, processors)


def free_host_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that this process may still take: the host's, or the container's if that is less."""
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith("MemAvailable:")
    )
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and used.exists():
        text = limit.read_text(encoding="ascii").strip()
        if text != "max":
            available = min(available, max(0, int(text) - int(used.read_text(encoding="ascii"))))
    return available


def release_freed_memory() -> None:
    """Give the host back what was freed, where the C library keeps it for later.

    The library of GNU does, in an arena for each thread: most of what loading a model took would stay resident.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
