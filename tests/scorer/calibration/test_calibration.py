"""From a file to a reply: what is refused, what is applied, what is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from scorer.app import load_model
from scorer.calibration.calibration import (
    Calibration,
    CalibrationError,
    Platt,
    check_calibration,
    read_calibration,
    write_calibration,
)
from scorer.metrics import Metrics
from scorer.settings import load
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import RERANK, SCORE, client_of, fake_application, fake_model
from tests.helpers.word_tokenizers import loaded

PLATT: dict[str, Any] = {
    "name": "mine",
    "version": 2,
    "method": "platt",
    "model": "fake",
    "revision": "rev1",
    "template": "query-likelihood@1",
    "platt": {"slope": 2.0, "intercept": 1.0},
}
COOL = Calibration(
    name="cool", version=1, method="temperature", model="fake", revision="rev1", template="classify@1", temperature=2.0
)
SIGMOID = Calibration(
    name="mine",
    version=2,
    method="platt",
    model="fake",
    revision="rev1",
    template="query-likelihood@1",
    platt=Platt(slope=2.0, intercept=1.0),
)
BODY = {"queries": ["what is a tree?"], "documents": ["a tree is a plant", "nobody is there"]}


def post(calibration: Calibration, body: dict[str, Any], path: str = SCORE) -> dict[str, Any]:
    model = replace(fake_model(FakeEngine()), calibration=calibration)
    with client_of(fake_application(FakeEngine(), load=lambda: model)) as client:
        reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for calibration in (COOL, SIGMOID):
        write_calibration(tmp_path / "c.json", calibration)

        assert read_calibration(tmp_path / "c.json") == calibration


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "isotonic"}, "isotonic"),
        ({"platt": None}, "`platt` belongs"),
        ({"platt": {"slope": 0, "intercept": 1}}, "slope"),
        ({"platt": {"slope": 1}}, "intercept"),
        ({"temperature": 2.0}, "under the method 'platt' it is 1"),
        ({"method": "temperature"}, "`platt` belongs"),
        ({"version": 0}, "version"),
        ({"name": "Mine!"}, "name"),
        ({"scale": 1}, "scale"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_value(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(PLATT | changes))

    with pytest.raises(CalibrationError, match=r"c\.json") as refusal:
        read_calibration(path)
    assert message in str(refusal.value)


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        read_calibration(tmp_path / "none.json")
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(CalibrationError, match="not a calibration"):
        read_calibration(tmp_path / "c.json")


def test_another_checkpoint_or_template_is_refused() -> None:
    check_calibration(SIGMOID, revision="rev1", templates=["query-likelihood@1"])
    with pytest.raises(CalibrationError, match=r"mine@2 was fitted on revision rev1 of fake; revision rev2"):
        check_calibration(SIGMOID, revision="rev2", templates=["query-likelihood@1"])
    with pytest.raises(CalibrationError, match=r"query-likelihood@1, which is not offered; there are yes-no@1"):
        check_calibration(SIGMOID, revision="rev1", templates=["yes-no@1"])


def test_a_sigmoid_makes_the_relevance_and_leaves_the_score() -> None:
    reply = post(SIGMOID, BODY)
    plain = post(SIGMOID, BODY | {"calibration": "none"})

    assert reply["calibration"] == "mine@2"
    assert plain["calibration"] is None
    for own, other in zip(reply["results"], plain["results"], strict=True):
        assert own["score"] == other["score"]
        assert own["relevance"] == pytest.approx(1 / (1 + math.exp(-(2 * own["score"] + 1))), rel=1e-5)
        assert other["relevance"] == pytest.approx(math.exp(other["score"]), rel=1e-5)


def test_rerank_answers_with_the_calibrated_relevance() -> None:
    body = {"query": BODY["queries"][0], "documents": BODY["documents"]}
    results = post(SIGMOID, body, RERANK)["results"]
    want = {each["document_index"]: each["relevance"] for each in post(SIGMOID, BODY)["results"]}

    assert {each["index"]: each["relevance_score"] for each in results} == want


def test_a_temperature_evens_out_the_labels_of_its_template() -> None:
    readout = {"labels": ["good", "bad"]}
    own, plain, stated = (
        post(COOL, BODY | extra)
        for extra in (
            {"readout": readout},
            {"readout": readout, "calibration": "none"},
            {"readout": readout | {"temperature": 2.0}, "calibration": "none"},
        )
    )

    assert (own["calibration"], plain["calibration"]) == ("cool@1", None)
    assert [each["labels"] for each in own["results"]] == [each["labels"] for each in stated["results"]]
    assert [each["labels"] for each in own["results"]] != [each["labels"] for each in plain["results"]]


def test_a_temperature_of_the_request_goes_before_the_calibration() -> None:
    reply = post(COOL, BODY | {"readout": {"labels": ["good", "bad"], "temperature": 5.0}})

    assert reply["calibration"] is None


@pytest.mark.parametrize(
    "extra",
    [{"template": "yes-no"}, {"readout": {"labels": ["a", "b"]}}, {"readout": {"content_free": "N/A"}}],
)
def test_a_calibration_is_for_its_own_template_and_score(extra: dict[str, Any]) -> None:
    assert post(SIGMOID, BODY | extra)["calibration"] is None


def test_info_names_the_calibration_that_is_loaded() -> None:
    model = replace(fake_model(FakeEngine()), calibration=COOL)
    with client_of(fake_application(FakeEngine(), load=lambda: model)) as client:
        assert client.get("/info").json()["calibration"] == "cool@1"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """What ``load_model`` starts."""
    engine = FakeEngine()
    monkeypatch.setattr("scorer.app.find_model", lambda *_: Path())
    monkeypatch.setattr("scorer.app.load_tokenizer", lambda _: loaded("smollm"))
    monkeypatch.setattr("engine.runner.start_engine", lambda *_, **__: engine)
    return engine


def test_the_setting_loads_a_calibration(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(path, COOL)
    settings = load({"SCORER_CALIBRATION": str(path)})

    assert load_model(settings, {}, Metrics()).calibration == COOL
    assert engine.closed_with is None


def test_a_calibration_of_another_checkpoint_stops_the_start_and_the_engine(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(path, replace_struct(COOL, revision="other"))

    with pytest.raises(CalibrationError, match="revision rev1 is served"):
        load_model(load({"SCORER_CALIBRATION": str(path)}), {}, Metrics())
    assert engine.closed_with == 0
