"""What holds for every scoring route in every dialect: strictness, encodings, headers, form of errors."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
import zstandard
from litestar.testing import TestClient

from scorer.dialects.error_forms import ErrorForm
from scorer.dialects.reply_headers import BATCH_HEADERS, TOKEN_HEADERS
from scorer.errors import MalformedBody, failure_of
from scorer.openapi import OPERATIONS
from scorer.openapi.operations import ScoringOperation, Spoken
from tests.helpers.service import service

MAX_BYTES = 8192
ROUTES = [
    pytest.param(operation, path, spoken, id=f"{operation.method} {path} {spoken.request.__name__}")
    for operation in OPERATIONS
    for path in operation.paths
    for spoken in operation.spoken
]
every_route = pytest.mark.parametrize(("operation", "path", "spoken"), ROUTES)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient[Any]]:
    with service(max_body_bytes=MAX_BYTES) as client:
        yield client


def send(
    client: TestClient[Any], operation: ScoringOperation, path: str, body: bytes, **headers: str
) -> httpx.Response:
    path = path.replace("{", "").replace("}", "")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request(operation.method, path, content=body, headers={"content-type": "application/json"} | named)


def example_of(spoken: Spoken) -> dict[str, Any]:
    """A body that is served, of a model that this service has."""
    value: dict[str, Any] = next(iter(spoken.requests.values()))["value"]
    return value | ({"model": "fake"} if "model" in value else {})


def text_of(fields: dict[str, Any], **raw: str) -> str:
    """The body with some fields spelt as given."""
    spelt = {name: json.dumps(value) for name, value in fields.items()} | raw
    return "{" + ",".join(f'"{name}":{value}' for name, value in spelt.items()) + "}"


def has_form_of(reply: httpx.Response, form: ErrorForm) -> bool:
    failure = failure_of(MalformedBody("no JSON"), request_id="r")
    kind = type(form(replace(failure, status=reply.status_code)).body)
    try:
        return bool(msgspec.to_builtins(msgspec.convert(reply.json(), kind)) == reply.json())
    except msgspec.ValidationError:
        return False


def is_refusal(reply: httpx.Response, path: str) -> bool:
    """Whether the client is told to change its request, in a form that this path has."""
    declared = 400 <= reply.status_code < 500 and reply.status_code != 424
    spoken_there = [spoken for operation in OPERATIONS if path in operation.paths for spoken in operation.spoken]
    return declared and any(has_form_of(reply, spoken.error_form) for spoken in spoken_there)


@every_route
def test_answers_say_in_headers_what_they_took(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken
) -> None:
    reply = send(client, operation, path, text_of(example_of(spoken)).encode())

    assert reply.status_code == 200, reply.text
    for name in TOKEN_HEADERS if operation.events else BATCH_HEADERS:
        assert int(reply.headers[name]) >= 0
    assert reply.headers["x-request-id"]


@every_route
@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress), ("x-gzip", gzip.compress)]
)
def test_compressed_bodies_are_taken(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken, encoding: str, compress: Any
) -> None:
    body = text_of(example_of(spoken)).encode()

    assert send(client, operation, path, compress(body), content_encoding=encoding).status_code == 200
    too_large = send(client, operation, path, compress(body + b" " * MAX_BYTES), content_encoding=encoding)
    broken = send(client, operation, path, body, content_encoding=encoding)
    unknown = send(client, operation, path, body, content_encoding="br")
    assert [too_large.status_code, unknown.status_code] == [413, 415]
    assert broken.status_code in {400, 422}
    assert all(is_refusal(reply, path) for reply in (too_large, broken, unknown))


@every_route
def test_b008_b033_what_is_not_strict_json_is_refused_in_the_form_of_the_route(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken
) -> None:
    fields = example_of(spoken)
    name = next(iter(fields))
    good = text_of(fields)
    bodies = {
        "empty": b"",
        "cut short": good[:-1].encode(),
        "a key twice": (good[:-1] + f',"{name}":{json.dumps(fields[name])}}}').encode(),
        "NaN": text_of(fields, another="NaN").encode(),
        "infinity": text_of(fields, another="-Infinity").encode(),
        "half of a surrogate pair": text_of(fields, another='"\\ud800"').encode(),
        "half of one in a field": text_of(fields, **{name: '["\\udc00"]'}).encode(),
        "not UTF-8": text_of(fields, another='"@"').encode().replace(b"@", b"\xff"),
        "nested too deeply": text_of(fields, another="[" * 1500 + "]" * 1500).encode(),
        "objects nested too deeply": text_of(fields, another='{"a":' * 1200 + "1" + "}" * 1200).encode(),
    }

    for what, body in bodies.items():
        reply = send(client, operation, path, body)
        assert reply.status_code in {400, 422}, (what, reply.text)
        assert is_refusal(reply, path), (what, reply.text)


@every_route
@pytest.mark.parametrize(
    "value", ["null", "true", "1e400", "-1", str(2**63), str(-(2**63) - 1), "9" * 400, "[[]]", "{}", '[{"a":1}]', '""']
)
def test_a_wrong_value_in_any_field_is_never_a_fault_of_ours(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken, value: str
) -> None:
    fields = example_of(spoken)
    for name in {*fields, *spoken.request.__struct_fields__}:
        reply = send(client, operation, path, text_of(fields, **{name: value}).encode())
        assert reply.status_code == 200 or is_refusal(reply, path), (name, reply.text)


@every_route
def test_other_media_types_and_sizes_are_refused_in_the_form_of_the_route(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken
) -> None:
    body = text_of(example_of(spoken)).encode()
    media = send(client, operation, path, body, content_type="text/plain")
    size = send(client, operation, path, body + b" " * MAX_BYTES)

    assert [media.status_code, size.status_code] == [415, 413]
    assert is_refusal(media, path)
    assert is_refusal(size, path)
    assert str(MAX_BYTES) in size.text


@every_route
def test_options_names_the_methods_that_are_served(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken
) -> None:
    allowed = client.options(path.replace("{", "").replace("}", "")).headers["allow"].split(", ")

    served = {other.method.upper() for other in OPERATIONS if path in other.paths}
    assert sorted(allowed) == sorted({*served, "OPTIONS"})


@every_route
def test_another_method_is_refused_in_the_form_of_the_route(
    client: TestClient[Any], operation: ScoringOperation, path: str, spoken: Spoken
) -> None:
    reply = client.request("PATCH", path.replace("{", "").replace("}", ""), json=example_of(spoken))

    assert reply.status_code == 405
    assert operation.method.upper() in reply.headers["allow"]
    assert is_refusal(reply, path)
