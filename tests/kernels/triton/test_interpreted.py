"""Runs the files of ``interpreted/`` with Triton's interpreter, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MODULES = sorted(map(str, (HERE / "interpreted").glob("test_*.py")))
# enough that two workers have something to do, and no more: each imports all that models need
NUM_PROCESSES = 2


@pytest.mark.parametrize("first", range(NUM_PROCESSES))
def test_interpreted(first: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *MODULES[first::NUM_PROCESSES]],
        cwd=ROOT,
        # nothing here needs the plugins that happen to be installed
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
