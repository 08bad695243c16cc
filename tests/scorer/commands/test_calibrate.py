from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scorer.calibration.calibration import read_calibration
from scorer.calibration.examples import answers_of, pairs_of
from scorer.commands.calibrate import command
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Stands in for the model that the command loads."""
    engine = FakeEngine()
    monkeypatch.setattr("scorer.offline.model.load_model", lambda *_: fake_model(engine))
    monkeypatch.setenv("SCORER_SELF_TEST", "report")
    return engine


def pairs_file(folder: Path, relevant: list[bool]) -> Path:
    path = folder / "pairs.jsonl"
    lines = [
        {"query": f"query {number}", "document": f"document {number}", "relevant": each}
        for number, each in enumerate(relevant)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def label_set(folder: Path, labels: list[int]) -> Path:
    lines = [
        {"id": str(number), "text": f"text {number}", "options": ["good", "bad", "odd"], "label": label}
        for number, label in enumerate(labels)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def labels_by_score(folder: Path) -> list[int]:
    """Labels that mostly follow the answers that the fake engine makes up."""
    source = label_set(folder, [0] * 40)
    model = fake_model(FakeEngine())
    _, answers = answers_of(source, model, "letters", max_document_tokens=None, num_queries=None)
    return [(answer.choice + (number % 3 == 0)) % 3 for number, answer in enumerate(answers)]


def test_a_label_set_gives_a_temperature_of_the_template_that_asked(tmp_path: Path) -> None:
    output = tmp_path / "c.json"
    source = label_set(tmp_path, labels_by_score(tmp_path))
    result = CliRunner().invoke(command, [str(source), "-o", str(output), "--name", "polite", "--version", "3"])

    assert result.exit_code == 0, result.output
    calibration = read_calibration(output)
    assert calibration.id == "polite@3"
    assert (calibration.method, calibration.template) == ("temperature", "multiple-choice@1")
    assert calibration.temperature != 1.0
    assert calibration.fit is not None
    assert calibration.fit.num_examples == 40
    assert f"temperature {calibration.temperature:.4f}" in result.output


def test_answers_that_are_no_better_than_chance_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(EXAMPLES / "label-set"), "-o", str(tmp_path / "c.json")])

    assert result.exit_code == 1
    assert "no better than chance" in result.output


def test_a_file_of_pairs_gives_a_sigmoid(tmp_path: Path) -> None:
    output = tmp_path / "c.json"
    relevant = relevant_by_score(tmp_path)
    result = CliRunner().invoke(command, [str(pairs_file(tmp_path, relevant)), "-o", str(output)])

    assert result.exit_code == 0, result.output
    calibration = read_calibration(output)
    assert (calibration.method, calibration.template) == ("platt", "query-likelihood@1")
    assert (calibration.model, calibration.revision) == ("fake", "rev1")
    assert calibration.platt is not None
    assert f"{calibration.platt.slope:.4f}" in result.output
    assert "40 examples" in result.output


def relevant_by_score(folder: Path) -> list[bool]:
    """Labels that mostly follow the scores that the fake engine makes up."""
    source = pairs_file(folder, [False] * 40)
    _, pairs = pairs_of(source, fake_model(FakeEngine()), max_document_tokens=None, num_queries=None)
    middle = sorted(pair.score for pair in pairs)[20]
    return [(pair.score > middle) != (number % 7 == 0) for number, pair in enumerate(pairs)]


def test_a_ranking_set_gives_its_candidates(tmp_path: Path) -> None:
    template, pairs = pairs_of(
        EXAMPLES / "ranking-set", fake_model(FakeEngine()), max_document_tokens=50, num_queries=3
    )

    assert template == "query-likelihood@1"
    assert len(pairs) == 60
    assert 0 < sum(pair.relevant for pair in pairs) < 10


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "pairs.jsonl:1"), ('{"query": "q", "document": "d"}', "`relevant`"), ("", "no pair has a score")],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    result = CliRunner().invoke(command, [str(path), "-o", str(tmp_path / "c.json")])

    assert result.exit_code == 1
    assert message in result.output


def test_examples_of_one_kind_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "c.json"
    result = CliRunner().invoke(command, [str(pairs_file(tmp_path, [True] * 4)), "-o", str(output)])

    assert result.exit_code == 1
    assert "both kinds are needed" in result.output
    assert not output.exists()


def test_a_name_that_is_none_is_refused_before_anything_is_scored(engine: FakeEngine, tmp_path: Path) -> None:
    source = pairs_file(tmp_path, [True, False])
    result = CliRunner().invoke(command, [str(source), "-o", str(tmp_path / "c.json"), "--name", "My name"])

    assert result.exit_code == 2
    assert engine.tasks == []
