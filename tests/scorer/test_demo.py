"""The demo of ``examples/``: what it prints is checked where it can be, and it never leaves a process behind."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from examples import demo
from scorer.dialects.schema import ScoreRequest
from scorer.http.json_body import StrictDecoder

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "num_queries", "num_documents"),
    [("rerank.json", 1, 10), ("questions.json", 16, 1), ("other-questions.json", 16, 1)],
)
def test_the_bodies_are_native_batches(name: str, num_queries: int, num_documents: int) -> None:
    request = StrictDecoder(ScoreRequest).decode((ROOT / "examples" / name).read_bytes())

    assert len(request.queries) == num_queries
    assert len(request.documents) == num_documents


def test_both_sets_of_questions_are_about_the_same_document_and_have_none_in_common() -> None:
    first, second = (
        json.loads((ROOT / "examples" / name).read_text()) for name in ("questions.json", "other-questions.json")
    )

    assert first["documents"] == second["documents"]
    assert not set(first["queries"]) & set(second["queries"])


def test_the_examples_are_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "examples").rglob("*") if path.is_file()) < 300_000


@pytest.mark.model
def test_the_demo_runs_to_its_end(default_model_path: Path) -> None:
    del default_model_path
    ran = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ready after" in ran.stdout
    assert ran.stdout.rstrip().endswith("Stopped with SIGTERM: exit code 0")
    warm = re.search(r"warm, the same questions .* ([\d.]+)$", ran.stdout, re.MULTILINE)
    assert warm is not None
    assert float(warm[1]) > 50  # the document and the instruction are not computed again


def test_without_a_model_it_says_how_to_get_one(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "SCORER_MODELS_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ran.returncode == 1
    assert "The demo failed: the service ended with exit code 1 before it was ready" in ran.stderr
    assert "scorer fetch" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_that_is_taken_meanwhile_is_told_from_other_failures() -> None:
    with socket.socket() as other, tempfile.TemporaryFile() as log:
        other.bind((demo.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        process = demo.start(port, log)
        try:
            with pytest.raises(demo.PortTaken):
                demo.wait_ready(demo.Service(f"http://{demo.HOST}:{port}"), process, log)
        finally:
            demo.stop(process)


def test_tokens_that_do_not_add_up_are_noticed() -> None:
    assert demo.Tokens(10, 3, 2, 5).adds_up
    assert not demo.Tokens(10, 3, 2, 4).adds_up
