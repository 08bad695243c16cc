from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, client_of, fake_application, service
from tests.helpers.tiny_service import tiny_service

DOCUMENT = " ".join(f"word{number}" for number in range(40))
PAIR = {"query": "who?", "document": DOCUMENT}
BATCH = {"queries": ["who?", "where?"], "documents": ["a", "b"], "template": "yes-no"}


def written(path: Path, *lines: Any) -> str:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_what_the_file_asks_about_is_in_the_cache_when_the_service_is_ready(tmp_path: Path) -> None:
    body = {"queries": ["another question"], "documents": [DOCUMENT]}
    with tiny_service(warm_file=written(tmp_path / "warm.jsonl", PAIR)) as client:
        warm = int(client.post(SCORE, json=body).headers["x-cached-tokens"])
    with tiny_service() as client:
        cold = int(client.post(SCORE, json=body).headers["x-cached-tokens"])

    assert warm > 40
    assert cold == 0


def test_pairs_and_batches_are_scored_in_the_order_of_the_file(tmp_path: Path) -> None:
    engine = FakeEngine()
    with service(engine, warm_file=written(tmp_path / "warm.jsonl", PAIR, BATCH)):
        asked = [(task.task_id, len(task.rows)) for task in engine.tasks]

    assert asked == [("warm-1", 1), ("warm-2", 4)]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([PAIR, {"query": 1, "document": "d"}], "warm.jsonl:2: read as a pair"),
        ([PAIR, BATCH | {"template": "nope"}], "warm.jsonl:2: no template has this name"),
        ([], "has no lines to score"),
    ],
)
def test_a_line_that_is_wrong_ends_the_start_and_is_named(tmp_path: Path, lines: list[Any], wrong: str) -> None:
    engine = FakeEngine()
    application = fake_application(engine, warm_file=written(tmp_path / "warm.jsonl", *lines))
    with client_of(application) as client:
        ready = client.get("/health/ready").json()

    assert ready["phase"] == "failed"
    assert wrong in ready["reason"]
    assert engine.closed_with == 0.0


def test_a_model_that_failed_its_test_is_not_warmed(tmp_path: Path) -> None:
    engine = FakeEngine()
    with client_of(fake_application(engine, fault="no order", warm_file=written(tmp_path / "warm.jsonl", PAIR))):
        pass

    assert not engine.tasks


def test_pairs_without_a_score_do_not_stand_in_the_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [PAIR | {"query": ""}, PAIR]
    with service(FakeEngine(), warm_file=written(tmp_path / "warm.jsonl", *lines)) as client:
        ready = client.get("/health/ready")

    assert ready.status_code == 200
    assert "1 of the 2 pairs" in caplog.text
