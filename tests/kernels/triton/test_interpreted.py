"""Runs the files of ``interpreted/`` with Triton's interpreter, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MODULES = sorted((HERE / "interpreted").glob("test_*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_interpreted(module: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", str(module)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
