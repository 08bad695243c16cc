from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from engine.host import available_processors
from scorer.fetch import DEFAULT_MODEL, ModelNotFoundError, find_model
from tests.models.files import GEMMA3

# each holds a gibibyte or so, and collects all tests before it runs some
_MOST_WORKERS: Final = 8

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the processors between them; two pools of threads that wait for each other take longer than none.
    # Read when the library of threads is loaded, which nothing before this does.
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: a worker for each processor, or none where a part of the suite is asked for.

    The start of a worker takes longer than most parts do; ``-n 4`` after it has its way.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or any(config.getoption(name, None) for name in ("keyword", "markexpr", "lf")):
        return 0
    processors = available_processors()
    return 0 if processors == 1 else min(processors, _MOST_WORKERS)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """Folder of the real default model; the test is skipped where it has not been fetched."""
    try:
        return find_model(DEFAULT_MODEL.name, os.environ)
    except ModelNotFoundError as error:
        pytest.skip(f"the default model is not here: {error}")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The GGUF file of a real Gemma 3; the test is skipped where it has not been fetched."""
    if not GEMMA3.path.is_file():
        pytest.skip(f"{GEMMA3.path} is not here; `make test-models` fetches it")
    return GEMMA3.path
