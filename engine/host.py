"""What this process may use of its host: processors and memory, within its container's limits."""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")

# names and numbers of the GNU C library's malloc.h; its threshold of mmap cannot be higher
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER_TRIM, _LARGEST_MMAP_THRESHOLD = -1, 32 << 20


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


def keep_freed_memory() -> bool:
    """Let the allocator keep what a step frees for the next, instead of giving it back to the system.

    The activations of a step are a few megabytes each. Given back and taken anew, their pages
    come as thousands of page faults in every step. Memory then stays at its high-water mark.

    Returns:
        Whether this C library has the means; only GNU's does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    thresholds = ((_M_TRIM_THRESHOLD, _NEVER_TRIM), (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD))
    return all(mallopt(option, value) for option, value in thresholds)
