from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine import EngineFault
from scorer.commands.score import command
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.llama_files import save_folder, tiny_llama
from tests.helpers.service import fake_model
from tests.helpers.word_tokenizers import loaded

ROOT = Path(__file__).parents[3]
PAIRS = ROOT / "examples/pairs.jsonl"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Stands in for the model that the command loads."""
    engine = FakeEngine()
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: fake_model(engine))
    monkeypatch.setenv("SCORER_SELF_TEST", "report")
    return engine


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(PAIRS.read_bytes())
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_writes_results_beside_the_file_and_says_what_it_took(engine: FakeEngine, source: Path) -> None:
    result = CliRunner().invoke(command, [str(source)])

    assert result.exit_code == 0, result.output
    header, *results = lines(source.with_name("pairs.scores.jsonl"))
    assert header["model"] == "fake"
    assert header["template"] == "query-likelihood@1"
    assert [each["id"] for each in results] == [each["id"] for each in lines(source)]
    assert "24 pairs; " in result.stderr
    assert "pairs/s; " in result.stderr
    assert "cached " in result.stderr
    assert result.stdout == ""
    assert engine.closed_with == 0


def test_goes_on_where_it_was(engine: FakeEngine, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    CliRunner().invoke(command, [str(source), "-o", str(output)])
    whole = output.read_bytes()
    output.write_bytes(whole[:-30])  # in the middle of the last result
    engine.tasks.clear()

    result = CliRunner().invoke(command, [str(source), "-o", str(output)])

    assert result.exit_code == 0, result.output
    assert "1 pairs; 23 were done before" in result.stderr
    assert sum(len(task.rows) for task in engine.tasks[1:]) == 1  # the first is the self-test
    assert [each.get("score") for each in lines(output)] == [
        json.loads(line).get("score") for line in whole.splitlines()
    ]


def test_another_template_does_not_go_on(engine: FakeEngine, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CliRunner().invoke(command, [str(source)])
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: fake_model(engine, template="yes-no"))

    result = CliRunner().invoke(command, [str(source)])

    assert result.exit_code == 1
    assert "template 'query-likelihood@1', now 'yes-no@1'" in result.stderr


def test_a_template_file_that_was_edited_does_not_go_on(
    engine: FakeEngine, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own.toml"
    own.write_text((ROOT / "scorer/templates/files/query-likelihood@1.toml").read_text().replace("-likelihood", "-own"))
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: fake_model(engine, template=str(own)))
    CliRunner().invoke(command, [str(source)])
    again = CliRunner().invoke(command, [str(source)])
    own.write_text(own.read_text().replace("Passage:", "Text:"))

    edited = CliRunner().invoke(command, [str(source)])

    assert again.exit_code == 0, again.output
    assert edited.exit_code == 1
    assert "made with template_sha256" in edited.stderr


def test_a_wrong_line_is_named_before_a_model_is_loaded(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: pytest.fail("the model was loaded"))
    source.write_text('{"query": "q", "document": "d"}\n{"query": "q"}\n')

    result = CliRunner().invoke(command, [str(source)])

    assert result.exit_code == 1
    assert "pairs.jsonl:2" in result.stderr
    assert not source.with_name("pairs.scores.jsonl").exists()


def test_errors_instead_of_scores_give_exit_code_1(engine: FakeEngine, source: Path) -> None:
    source.write_text('{"query": "q", "document": "d"}\n{"query": "", "document": "d"}\n')

    result = CliRunner().invoke(command, [str(source)])

    assert result.exit_code == 1
    assert "2 pairs; 1 have an error instead of a score" in result.stderr


def test_an_engine_that_fails_leaves_the_results_so_far(engine: FakeEngine, source: Path) -> None:
    submit = engine.submit

    def fail_later(task: Any) -> Any:
        if len(engine.tasks) == 3:  # the self-test and two groups
            raise EngineFault("the step failed")
        return submit(task)

    engine.submit = fail_later  # type: ignore[method-assign]

    result = CliRunner().invoke(command, [str(source), "--batch-pairs", "5"])

    assert result.exit_code == 1
    assert "the step failed; the results so far are in" in result.stderr
    assert len(lines(source.with_name("pairs.scores.jsonl"))) == 1 + 10


def test_an_interruption_leaves_the_results_so_far(engine: FakeEngine, source: Path) -> None:
    submit = engine.submit

    def interrupt(task: Any) -> Any:
        if len(engine.tasks) == 2:
            raise KeyboardInterrupt
        return submit(task)

    engine.submit = interrupt  # type: ignore[method-assign]

    result = CliRunner().invoke(command, [str(source), "--batch-pairs", "5"])

    assert result.exit_code == 130
    assert "run again to go on" in result.stderr
    assert len(lines(source.with_name("pairs.scores.jsonl"))) == 1 + 5


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random model that runs through the real engine."""
    tokenizer = loaded("smollm")
    folder = save_folder(tiny_llama(vocab_size=tokenizer.vocab_size), tmp_path_factory.mktemp("tiny"))
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_process_that_is_killed_is_continued_without_loss_or_repetition(tiny_model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    pairs = [{"id": number, "query": f"what is {number}?", "document": f"it is {number}"} for number in range(2000)]
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    arguments = ["score", str(source), "-o", str(output), "--model", str(tiny_model)]
    environ = os.environ | {"SCORER_SELF_TEST": "report", "SCORER_ENGINE__POOL_BYTES": str(2**22)}

    def run(*more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "scorer", *arguments, *more]
        return subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL)

    killed = run("--batch-pairs", "1")
    give_up_at = time.monotonic() + 120
    while not (output.exists() and output.read_bytes().count(b"\n") > 5):
        assert killed.poll() is None
        assert time.monotonic() < give_up_at, "nothing was written"
        time.sleep(0.01)
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    num_written = output.read_bytes().count(b"\n") - 1
    finishing = run()
    assert finishing.wait(120) == 0

    assert num_written < 2000
    _, *results = lines(output)
    assert [result["id"] for result in results] == list(range(2000))
