"""Limits of a container count, not what the host has."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from engine.host import available_processors, free_host_memory, release_freed_memory


@pytest.mark.parametrize(("limit", "wanted"), [("50000 100000", 1), ("100000 100000", 1), ("max 100000", None)])
def test_processors_are_those_of_the_container(tmp_path: Path, limit: str, wanted: int | None) -> None:
    (tmp_path / "cpu.max").write_text(limit)

    assert available_processors(tmp_path) == (wanted or len(os.sched_getaffinity(0)))


def test_a_wide_limit_gives_no_more_than_there_are(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("6400000 100000")

    assert available_processors(tmp_path) == min(64, len(os.sched_getaffinity(0)))


def test_without_a_container_processors_are_those_of_the_process(tmp_path: Path) -> None:
    assert available_processors(tmp_path) == len(os.sched_getaffinity(0))


def test_memory_is_what_the_container_has_left(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("300000000\n")
    (tmp_path / "memory.current").write_text("100000000\n")

    assert free_host_memory(tmp_path) == 200_000_000


def test_memory_over_the_limit_is_none_left(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("100")
    (tmp_path / "memory.current").write_text("300")

    assert free_host_memory(tmp_path) == 0


def test_memory_without_a_limit_is_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300")

    assert free_host_memory(tmp_path) > 1 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_what_was_freed_between_what_is_used_is_given_back() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("the C library has no malloc_trim")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size = 64 << 10  # too small for pages of its own
    blocks = [libc.malloc(size) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # the last keeps the end of the heap in use
        libc.free(block)
    before = resident_bytes()

    release_freed_memory()

    assert resident_bytes() < before - 900 * size
    libc.free(blocks[-1])
