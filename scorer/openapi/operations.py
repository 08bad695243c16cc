"""Scoring operations of the OpenAPI document: what a route takes and answers, error forms included."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from scorer.dialects.error_forms import ErrorForm, native_error
from scorer.dialects.reply_headers import BATCH_HEADERS, TOKEN_HEADERS
from scorer.dialects.schema import REQUEST_ID
from scorer.errors import ANSWERS, INTERNAL, Answer, ClientGone, Failure
from scorer.http.json_body import NDJSON

Json: TypeAlias = dict[str, Any]

_EVENT: Final[Json] = {
    "description": "Of each event; the description of the operation says which struct its data is, as JSON.",
    "type": "object",
    "properties": {"event": {"enum": ["text", "usage", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
_MEANING: Final = {
    400: "The body is not strict JSON: malformed, nested too deeply, a duplicate key, half a surrogate pair, NaN.",
    401: "The service asks who is calling, and the request does not say so.",
    404: "Another model is asked for than the one that is served.",
    408: "The body did not arrive in time.",
    413: "The body is too large; `limit` says how large it may be.",
    415: "The body is not sent as `application/json` in UTF-8, plain or compressed with gzip or zstd.",
    422: "A type or value in the body is wrong; `field`, `value` and `limit` say which and why.",
    429: "Over an admission limit. Come back after `Retry-After` seconds.",
    500: "A fault of the service, or no document got a finite score.",
    503: "The model is loading, draining, or the engine has failed.",
    504: "The deadline passed before any pair was scored.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One dialect of a route.

    Args:
        request, reply: Types of the bodies.
        requests: Examples by name, each with ``summary`` and ``value``.
        answer: Example of an answer.
    """

    request: Any
    reply: Any
    requests: Mapping[str, Any]
    answer: Any
    error_form: ErrorForm = native_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Bodies in lines of JSON.

    Args:
        request, reply: Types that a line may have.
        sent, answered: Examples.
    """

    request: tuple[Any, ...]
    reply: tuple[Any, ...]
    sent: str
    answered: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOperation:
    """One or more routes that speak the same dialects.

    Args:
        never: Errors that these routes do not answer.
        lines: What a body in lines of JSON is made of; None: it is not taken.
        events: Data of the events, where the answer may be a stream of them.
        event_example: One of them.
    """

    paths: tuple[str, ...]
    operation_id: str
    summary: str
    description: str
    spoken: tuple[Spoken, ...]
    never: frozenset[type[Exception]] = frozenset()
    lines: Lines | None = None
    method: Literal["post", "put"] = "post"
    events: tuple[Any, ...] = ()
    event_example: Mapping[str, str] = field(default_factory=dict)

    @property
    def types(self) -> list[Any]:
        """Types of all bodies, those of errors included."""
        bodies = [kind for spoken in self.spoken for kind in (spoken.request, spoken.reply)]
        bodies += [*self.lines.request, *self.lines.reply] if self.lines else []
        forms = {spoken.error_form for spoken in self.spoken}
        errors = {type(_wire(form, answer).body) for form in forms for answer in [*ANSWERS.values(), INTERNAL]}
        return [*bodies, *self.events, *errors]


def describe(operation: ScoringOperation) -> dict[str, Json]:
    """The path items of the operation; the second and further paths have the id with a number."""
    described: dict[str, Json] = {}
    for number, path in enumerate(operation.paths, start=1):
        described[path] = {
            operation.method: {
                "operationId": operation.operation_id + (str(number) if number > 1 else ""),
                "tags": ["scoring"],
                "security": [{}, {"key": []}],
                "summary": operation.summary,
                "description": operation.description,
                "parameters": [*path_parameters(path), request_id_parameter()],
                "requestBody": _request_body(operation),
                "responses": {"200": _answers(operation), **_errors(operation)},
            }
        }
    return described


def schema_of(kind: Any) -> Json:
    """The schema of a type whose parts are among the components."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return schema


def response_headers(more: Iterable[str] = ()) -> Json:
    """What an answer has beside its body; all answers name their request."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *more)}


def error_response(codes: Sequence[str], status: int, schema: Json) -> Json:
    """An error, with the codes that it may have in the native form."""
    headers = response_headers(["retry-after"] if status in {429, 503} else [])
    return {
        "description": f"{_MEANING[_native_status(codes[0])]} `code`: {', '.join(f'`{code}`' for code in codes)}.",
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


def request_id_parameter() -> Json:
    return {
        "name": "x-request-id",
        "in": "header",
        "required": False,
        "description": f"A name for the request; one that does not match `{REQUEST_ID}` is replaced.",
        "schema": {"type": "string"},
    }


def path_parameters(path: str) -> list[Json]:
    """What stands in braces."""
    return [
        {"name": name, "in": "path", "required": True, "description": "Any name.", "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _request_body(operation: ScoringOperation) -> Json:
    shown: Json = {}
    for spoken in operation.spoken:
        shown |= spoken.requests
    schema = _any_of([schema_of(spoken.request) for spoken in operation.spoken])
    content = {"application/json": {"schema": schema, "examples": shown}}
    if operation.lines:
        content[NDJSON] = _lines(operation.lines.request, operation.lines.sent)
    return {"required": True, "content": content}


def _answers(operation: ScoringOperation) -> Json:
    content: Json = {"schema": _any_of([schema_of(spoken.reply) for spoken in operation.spoken])}
    if len(operation.spoken) == 1:
        content["example"] = operation.spoken[0].answer
    else:
        content["examples"] = {
            name: {"value": spoken.answer} for spoken in operation.spoken for name in list(spoken.requests)[:1]
        }
    contents = {"application/json": content}
    if operation.lines:
        contents[NDJSON] = _lines(operation.lines.reply, operation.lines.answered)
    if operation.events:
        contents["text/event-stream"] = {"schema": _EVENT, "example": dict(operation.event_example)}
    description = "Text." if operation.events else "Scores."
    headers = response_headers(TOKEN_HEADERS if operation.events else BATCH_HEADERS)
    return {"description": description, "headers": headers, "content": contents}


def _lines(kinds: tuple[Any, ...], example: str) -> Json:
    return {"schema": {"description": "Of each line.", **_any_of(list(map(schema_of, kinds)))}, "example": example}


def _errors(operation: ScoringOperation) -> Json:
    codes: defaultdict[int, list[str]] = defaultdict(list)
    schemas: defaultdict[int, list[Json]] = defaultdict(list)
    possible = [answer for kind, answer in ANSWERS.items() if kind not in {ClientGone, *operation.never}]
    for answer in [*possible, INTERNAL]:
        for spoken in operation.spoken:
            wire = _wire(spoken.error_form, answer)
            schema = schema_of(type(wire.body))
            if answer.code not in codes[wire.status]:
                codes[wire.status].append(answer.code)
            if schema not in schemas[wire.status]:
                schemas[wire.status].append(schema)
    return {str(status): error_response(codes[status], status, _any_of(schemas[status])) for status in sorted(codes)}


def _wire(form: ErrorForm, answer: Answer) -> Any:
    """An error of this kind as the form words it."""
    failure = Failure(
        status=answer.status,
        code=answer.code,
        outcome=answer.outcome,
        message="",
        retryable=False,
        request_id="",
        headers={},
    )
    return form(failure)


def _native_status(code: str) -> int:
    return next(answer.status for answer in [*ANSWERS.values(), INTERNAL] if answer.code == code)


def _any_of(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
