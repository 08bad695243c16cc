"""The C library touches no memory but its own and does nothing that C leaves undefined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.native import build

ROOT = Path(__file__).parents[2]
# exceptions of C++ libraries pass through the runtime, which finds the library of C++ only if that is there first
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
SANITISED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def runtimes() -> list[str] | None:
    """Files of the runtimes of the compiler's sanitisers; None where one is not there."""
    compiler = build.find_compiler()
    if compiler is None:
        return None
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in RUNTIMES
    ]
    return found if all(Path(file).is_absolute() for file in found) else None


def levels() -> list[build.Level]:
    """The best level, and the one without tiles: a sanitiser does not see what a tile instruction reads and writes."""
    here = build.processor_levels()
    return [*here[:1], *(level for level in here[1:] if level.name == "x86-64-v4-bf16")]


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_random_operations_stay_within_their_memory(tmp_path: Path, level: build.Level) -> None:
    preload = runtimes()
    if preload is None:
        pytest.skip("no C compiler here, or one without the library of its address sanitiser")
    watched = build.Level(level.name, (*level.flags, *SANITISED), level.needs)
    library = build.build_library(tmp_path, watched, build.find_compiler() or "")

    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.sanitized", str(library)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": " ".join(preload), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout == "done\n"
