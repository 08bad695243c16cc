from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine import EngineFault
from scorer.commands.eval import command
from scorer.fetch import ModelNotFoundError
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model

EXAMPLES = Path(__file__).parents[3] / "examples/ranking-set"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Stands in for the model that the command loads."""
    engine = FakeEngine()
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: fake_model(engine))
    monkeypatch.setenv("SCORER_SELF_TEST", "report")
    return engine


def test_prints_both_rankings_and_where_the_tokens_came_from(engine: FakeEngine) -> None:
    result = CliRunner().invoke(command, [str(EXAMPLES), "--weights", "0.5, 0.7"])

    assert result.exit_code == 0, result.output
    out = result.stdout
    assert "10 queries, 120 documents, 200 pairs" in out
    assert "fake (revision rev1), float32" in out
    assert "query-likelihood@1" in out
    assert out.count("  BM25 ") == out.count("  model alone ") == 2
    assert "mixed, 0.5 model" in out
    assert "mixed, 0.7 model" in out
    assert "5 queries held out; weight chosen on the other 5" in out
    assert "pairs/s" in out
    assert engine.closed_with == 0


def test_the_report_for_programs_adds_up(engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    result = CliRunner().invoke(command, [str(EXAMPLES), "--queries", "3", "--depth", "7", "--json", str(file)])

    assert result.exit_code == 0, result.output
    report = json.loads(file.read_text())
    assert (report["tally"]["num_pairs"], report["depth"]) == (21, 7)
    assert sum(len(task.rows) for task in engine.tasks[1:]) == 21  # the first is the self-test
    usage = report["tally"]["usage"]
    assert usage["prompt_tokens"] == usage["cached_tokens"] + usage["shared_tokens"] + usage["computed_tokens"]
    assert report["evaluation"]["every"]["num_queries"] == 3
    assert report["evaluation"]["held_out"]["num_queries"] == 1
    assert report["evaluation"]["every"]["rows"][0]["name"] == "BM25"


def test_a_set_that_is_wrong_is_named_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: pytest.fail("the model was loaded"))

    result = CliRunner().invoke(command, [str(tmp_path)])

    assert result.exit_code == 1
    assert "has neither docs.jsonl, as ranking sets do, nor items.jsonl" in result.stderr


@pytest.mark.parametrize("weights", ["much", "1.5", "-0.1", "nan"])
def test_weights_are_shares(weights: str) -> None:
    result = CliRunner().invoke(command, [str(EXAMPLES), "--weights", weights])

    assert result.exit_code == 2
    assert "--weights" in result.stderr


def test_a_missing_extra_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)

    result = CliRunner().invoke(command, [str(EXAMPLES)])

    assert result.exit_code == 1
    assert "bm25s is not installed; pip install 'radix-scorer[eval]'" in result.stderr


def test_a_missing_model_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise ModelNotFoundError("there is no model: `scorer fetch` puts one in place")

    monkeypatch.setattr("scorer.offline.model.load_model", load)

    result = CliRunner().invoke(command, [str(EXAMPLES)])

    assert result.exit_code == 1
    assert "scorer fetch" in result.stderr


def test_an_engine_that_fails_ends_the_command_with_the_reason(engine: FakeEngine) -> None:
    engine.fail_with = EngineFault("the step failed")

    result = CliRunner().invoke(command, [str(EXAMPLES)])

    assert result.exit_code == 1
    assert "the step failed" in result.stderr
    assert engine.closed_with == 0


def test_a_model_that_fails_its_self_test_judges_nothing(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORER_SELF_TEST", "require")
    monkeypatch.setattr("scorer.offline.model.self_test", lambda _: "golden query 0 is wrong")

    result = CliRunner().invoke(command, [str(EXAMPLES)])

    assert result.exit_code == 1
    assert "the self-test failed: golden query 0 is wrong" in result.stderr
    assert engine.closed_with == 0


def test_a_report_that_cannot_be_written_loses_nothing_of_the_table(engine: FakeEngine, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        command, [str(EXAMPLES), "--queries", "2", "--json", str(tmp_path / "none/report.json")]
    )

    assert result.exit_code == 1
    assert "report.json cannot be written: No such file" in result.stderr
    assert "model alone" in result.stdout


LABELS = Path(__file__).parents[3] / "examples/label-set"


@pytest.mark.parametrize("form", ["letters", "words"])
def test_a_label_set_is_answered_in_one_order_and_in_several(engine: FakeEngine, form: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = [str(LABELS), "--answers", form, "--debias", "rotate", "--json", str(file)]
    result = CliRunner().invoke(command, arguments)

    assert result.exit_code == 0, result.output
    assert "label-set: 7 questions about 5 documents" in result.stdout
    assert "as listed" in result.stdout
    assert "rotate, averaged" in result.stdout
    report = json.loads(file.read_text())
    assert [row["num_questions"] for row in report["rows"]] == [7, 7]
    assert report["rows"][0]["flips"] is None
    assert 0 <= report["rows"][1]["flips"] <= 1
    assert report["constant_accuracy"] == pytest.approx(4 / 7)
    usage = report["tally"]["usage"]
    assert usage["prompt_tokens"] == usage["cached_tokens"] + usage["shared_tokens"] + usage["computed_tokens"]
    assert usage["cached_tokens"] > 0  # the second pass finds the documents of the first


def test_a_text_without_a_question_is_asked_the_one_that_is_given(engine: FakeEngine) -> None:
    def prompts(*extra: str) -> int:
        engine.tasks.clear()
        result = CliRunner().invoke(command, [str(LABELS), *extra])
        assert result.exit_code == 0, result.output
        return sum(len(row.tokens) for task in engine.tasks for row in task.rows)

    assert prompts("--question", "Is it praise or is it a complaint, or neither of the two, or both?") > prompts()
    assert prompts("--queries", "2") < prompts()
