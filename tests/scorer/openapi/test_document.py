from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar

from scorer.dialects.rerank_schema import RerankResponse
from scorer.dialects.schema import ItemResult, ScoreResponse, StreamEnd
from scorer.errors import ANSWERS
from scorer.http.json_body import StrictDecoder
from scorer.http.probes import Info, Liveness, ModelList, Readiness
from scorer.openapi import OPERATIONS, encoded_document, openapi_document
from scorer.openapi.operations import ScoringOperation, Spoken
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import RERANK, SCORE, fake_application, service

COMMITTED = Path(__file__).parents[3] / "docs/openapi.json"
DOCUMENT = openapi_document()
SPOKEN = [
    pytest.param(operation, spoken, id=f"{operation.operation_id}-{spoken.request.__name__}")
    for operation in OPERATIONS
    for spoken in operation.spoken
]


def every(value: Any, name: str) -> Iterator[Any]:
    """Every value of a key, at any depth."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key == name:
                yield below
            yield from every(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from every(below, name)


def test_the_committed_document_is_up_to_date() -> None:
    assert COMMITTED.read_bytes() == encoded_document(), "run `python -m scorer.openapi > docs/openapi.json`"


def test_the_document_has_every_route_and_no_other() -> None:
    application = fake_application(FakeEngine())
    app = application.asgi._app
    assert isinstance(app, Litestar)
    served = {
        (route.path_format, method.lower())
        for route in app.routes
        for handler in getattr(route, "route_handlers", [])
        for method in handler.http_methods
        if method != "OPTIONS"
    }
    documented = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}

    assert documented == served


def test_every_reference_leads_somewhere() -> None:
    for reference in every(DOCUMENT, "$ref"):
        target: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_operation_ids_are_distinct() -> None:
    names = list(every(DOCUMENT["paths"], "operationId"))

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", [SCORE, "/v2/rerank"])
def test_every_error_that_can_be_answered_is_declared(path: str) -> None:
    declared = set(DOCUMENT["paths"][path]["post"]["responses"])
    possible = {str(answer.status) for answer in ANSWERS.values()} - {"499"}  # nobody is there to read that one

    assert declared - {"200"} == (possible if path == SCORE else possible - {"404"})


def test_every_code_of_the_table_is_described() -> None:
    text = json.dumps(DOCUMENT["paths"][SCORE])

    assert {answer.code for answer in ANSWERS.values() if answer.status != 499} <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize(("operation", "spoken"), SPOKEN)
def test_the_examples_of_requests_are_served_and_answered_as_declared(
    operation: ScoringOperation, spoken: Spoken
) -> None:
    with service() as client:
        for example in spoken.requests.values():
            StrictDecoder(spoken.request).decode(json.dumps(example["value"]).encode())
            named = {"model": "fake"} if "model" in example["value"] else {}  # as this service calls its model
            reply = client.request(operation.method, operation.paths[0], json=example["value"] | named)

            assert reply.status_code == 200
            assert msgspec.to_builtins(msgspec.convert(reply.json(), spoken.reply)) == reply.json()


@pytest.mark.parametrize(("operation", "spoken"), SPOKEN)
def test_the_examples_of_answers_have_the_form_of_answers(operation: ScoringOperation, spoken: Spoken) -> None:
    assert msgspec.to_builtins(msgspec.convert(spoken.answer, spoken.reply)) == spoken.answer


def test_real_answers_have_no_field_that_is_not_declared() -> None:
    body = {"queries": ["q", ""], "documents": ["d", "e"], "readout": {"kind": "likelihood"}}
    labelled = {"queries": ["q"], "documents": ["d"], "readout": {"labels": ["Yes", "No"], "label_mass": True}}
    with service() as client:
        replies = [
            (client.post(SCORE, json=body), ScoreResponse),
            (client.post(SCORE, json=labelled), ScoreResponse),
            (client.post(RERANK, json={"query": "q", "documents": ["d"], "return_documents": True}), RerankResponse),
            (client.get("/health/live"), Liveness),
            (client.get("/health/ready"), Readiness),
            (client.get("/v1/models"), ModelList),
            (client.get("/info"), Info),
        ]

    for reply, kind in replies:
        assert reply.status_code == 200
        assert msgspec.to_builtins(msgspec.convert(reply.json(), kind)) == reply.json()


def test_the_document_and_its_page_are_served_without_any_outside_link() -> None:
    with service() as client:
        document, page = client.get("/openapi.json"), client.get("/docs")

    assert document.json() == DOCUMENT
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.findall(r"(?:https?:)?//[a-z]", page.text.replace("// Everything", "").replace("// `code`", ""))


def test_the_examples_of_lines_are_served_and_answered_as_declared() -> None:
    lines = OPERATIONS[0].lines
    assert lines is not None
    headers = {"content-type": "application/x-ndjson", "accept": "application/x-ndjson"}
    with service() as client:
        reply = client.post(SCORE, content=lines.sent, headers=headers)

    for text in (reply.text, lines.answered):
        *results, end = map(json.loads, text.splitlines())
        assert msgspec.to_builtins(msgspec.convert(end, StreamEnd)) == end
        assert all(msgspec.to_builtins(msgspec.convert(each, ItemResult)) == each for each in results)
