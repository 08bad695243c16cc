"""What each dialect takes and answers, key for key; see golden/README.md. The judge of scores is the native route."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from tests.helpers.service import SCORE, service

FOLDER = Path(__file__).parent / "golden"
CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in sorted(FOLDER.glob("*.json"))
    for case in json.loads(file.read_text(encoding="utf-8"))
]
_JUDGED = re.compile(
    r"\$(?P<kind>relevance|log_odds|label|confidence|mass|expected)\[(?P<index>\d+)\](?:\.(?P<labels>.+))?"
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient[Any]]:
    with service(max_pairs=8, max_body_bytes=2048) as client:
        yield client


@pytest.mark.parametrize("case", CASES)
def test_golden(case: dict[str, Any], client: TestClient[Any]) -> None:
    sent = case["body"] if "body" in case else json.dumps(case["request"])
    content_type = case.get("content_type", "application/json")
    reply = client.request(
        case.get("method", "POST"), case["path"], content=sent, headers={"content-type": content_type}
    )
    judged = client.post(SCORE, json=case["native"]).json()["results"] if "native" in case else []

    assert reply.status_code == case["status"], reply.text
    assert_matches(reply.json(), case["reply"], judged, "$")
    assert set(case.get("headers", [])) <= set(reply.headers)


def assert_matches(got: Any, wanted: Any, judged: list[dict[str, Any]], path: str) -> None:
    if isinstance(wanted, dict):
        assert isinstance(got, dict), path
        assert got.keys() == wanted.keys(), path
        for key in wanted:
            assert_matches(got[key], wanted[key], judged, f"{path}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(got, list), path
        assert len(got) == len(wanted), path
        for index, (each, other) in enumerate(zip(got, wanted, strict=True)):
            assert_matches(each, other, judged, f"{path}[{index}]")
    elif wanted == "$any":
        assert got is not None, path
    elif wanted == "$number":
        assert type(got) in {int, float}, path
        assert math.isfinite(got), path
    elif isinstance(wanted, str) and (placeholder := _JUDGED.fullmatch(wanted)):
        assert got == pytest.approx(expected(placeholder, judged), rel=1e-5), path
    else:
        assert type(got) is type(wanted), path
        assert got == wanted, path


def expected(placeholder: re.Match[str], judged: list[dict[str, Any]]) -> float:
    result = judged[int(placeholder["index"])]
    score, labels, mass = float(result["score"]), result.get("labels", {}), result.get("label_mass", 1.0)
    relevance = score if labels else math.exp(score)
    answers = (placeholder["labels"] or "").split("|")
    named = max(sum(labels[label] for label in answer.split("+") if label) for answer in answers)
    match placeholder["kind"]:
        case "relevance":
            return relevance
        case "log_odds":
            return math.log(relevance / (1 - relevance))
        case "label":
            return float(named)
        case "confidence":
            return float(named * mass)
        case "mass":
            return float(mass)
        case _:
            return float(sum(int(label) * share for label, share in labels.items()))
