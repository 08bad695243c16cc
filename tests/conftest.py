from __future__ import annotations

import os
from pathlib import Path

import pytest

from scorer.fetch import DEFAULT_MODEL, ModelNotFoundError, find_model
from tests.models.files import GEMMA3


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
