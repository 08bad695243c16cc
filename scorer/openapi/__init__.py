"""The OpenAPI document, made from the wire structs; ``python -m scorer.openapi`` prints it.

Built here and not by the web framework, because handlers read their bodies themselves.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scorer.dialects.error_forms import ErrorBody, OpenAiErrorBody
from scorer.dialects.ndjson import PairLine
from scorer.dialects.reply_headers import BATCH_HEADERS
from scorer.dialects.schema import ItemResult, ScoreOptions, ScoreRequest, ScoreResponse, StreamEnd
from scorer.errors import ANSWERS, UnknownModel
from scorer.http.probes import Info, Liveness, ModelEntry, ModelList, Readiness
from scorer.openapi import examples
from scorer.openapi.generate import GENERATE_OPERATION
from scorer.openapi.operations import (
    Json,
    Lines,
    ScoringOperation,
    Spoken,
    describe,
    error_response,
    path_parameters,
    response_headers,
    schema_of,
)
from scorer.openapi.rerank import RERANK_OPERATIONS
from scorer.openapi.scoring import SCORING_OPERATIONS

API_VERSION: Final = "1"
_PROBE_STRUCTS: Final = (ErrorBody, Liveness, Readiness, ModelList, Info)

_NATIVE: Final = ScoringOperation(
    paths=("/v1/batches/score",),
    operation_id="scoreBatch",
    summary="Score queries × documents, or chosen pairs",
    description=(
        "A pair that cannot be scored has an `error` and does not spoil the others. When the deadline passes, "
        "what is scored by then is returned and the rest is `unscored`. Unknown fields are refused. Texts are "
        "data: no special token can come from them. Pairs may also be sent as lines of JSON, the first of which may "
        "hold the fields of a batch that are not texts. With `accept: application/x-ndjson` the answer comes in lines: "
        "each result when it is known, in no order (with `top_n` at the end, best first), then what all of them cost. "
        "Token counts in headers are missing there."
    ),
    spoken=(
        Spoken(
            request=ScoreRequest,
            reply=ScoreResponse,
            requests=examples.SCORE_REQUESTS,
            answer=examples.SCORE_RESPONSE,
        ),
    ),
    lines=Lines(
        request=(ScoreOptions, PairLine),
        reply=(ItemResult, StreamEnd),
        sent=examples.SCORE_LINES,
        answered=examples.SCORE_STREAM,
    ),
)
OPERATIONS: Final[tuple[ScoringOperation, ...]] = (
    _NATIVE,
    *SCORING_OPERATIONS,
    *RERANK_OPERATIONS,
    GENERATE_OPERATION,
)


def openapi_document() -> Json:
    """OpenAPI 3.1, complete with examples and every error."""
    types = [*_PROBE_STRUCTS, *(kind for operation in OPERATIONS for kind in operation.types)]
    _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radix-scorer",
            "version": API_VERSION,
            "summary": "Scores (query, document) pairs with a language model and computes every shared prefix once.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [
            {"name": "scoring", "description": "Scores for pairs of texts."},
            {"name": "operation", "description": "For operators and their machines."},
        ],
        "paths": _merged(*map(describe, OPERATIONS), _probe_paths(), _page_paths()),
        "components": {
            "schemas": components,
            "headers": _headers(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed for scores and text where the service was started with a file of keys.",
                }
            },
        },
    }


def _merged(*groups: Json) -> Json:
    """The path items of all groups; a path may have a method in one and another method in another."""
    paths: Json = {}
    for group in groups:
        for path, item in group.items():
            paths[path] = paths.get(path, {}) | item
    return paths


def _probe_paths() -> Json:
    return {
        "/health/live": _get(
            "live",
            "Whether a restart would help",
            {"200": _success(Liveness, "Alive."), "503": _success(Liveness, "Dead: restart it.")},
        ),
        "/health/ready": _get("ready", "Whether requests are served", _readiness()),
        "/health": _get("health", "The same, where probes of other services look for it", _readiness()),
        "/v1/models": _get(
            "models",
            "The model that is served, in the form of OpenAI",
            {"200": _success(ModelList, "One model."), **_not_ready(OpenAiErrorBody)},
        ),
        "/v1/models/{model_id}": _one_model(),
        "/info": _get(
            "info",
            "What is running, and its limits",
            {"200": _success(Info, "What is running."), **_not_ready(ErrorBody)},
        ),
    }


def _readiness() -> Json:
    return {"200": _success(Readiness, "Ready."), "503": _success(Readiness, "Not ready; `reason` says why.")}


def _page_paths() -> Json:
    metrics = {
        "description": "Prometheus text, or OpenMetrics where `Accept` names it.",
        "headers": response_headers(),
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "application/openmetrics-text": {"schema": {"type": "string"}},
        },
    }
    return {
        "/metrics": _get("metrics", "Metrics", {"200": metrics}),
        "/openapi.json": _get("openapi", "This document", {"200": _plain("application/json", "This document.")}),
        "/docs": _get("docs", "This document as a page", {"200": _plain("text/html", "A page without outside links.")}),
    }


def _get(operation_id: str, summary: str, responses: Json) -> Json:
    return {
        "get": {"operationId": operation_id, "tags": ["operation"], "summary": summary, "responses": responses},
    }


def _success(kind: Any, description: str) -> Json:
    return {
        "description": description,
        "headers": response_headers(),
        "content": {"application/json": {"schema": schema_of(kind)}},
    }


def _plain(media_type: str, description: str) -> Json:
    return {
        "description": description,
        "headers": response_headers(),
        "content": {media_type: {"schema": {"type": "object" if media_type == "application/json" else "string"}}},
    }


def _one_model() -> Json:
    unknown = error_response([ANSWERS[UnknownModel].code], 404, schema_of(OpenAiErrorBody))
    item = _get(
        "model",
        "One model by its name, in the form of OpenAI",
        {"200": _success(ModelEntry, "It is served."), "404": unknown, **_not_ready(OpenAiErrorBody)},
    )
    item["get"]["parameters"] = path_parameters("/v1/models/{model_id}")
    return item


def _not_ready(body: Any) -> Json:
    codes = [answer.code for answer in ANSWERS.values() if answer.status == 503]
    return {"503": error_response(codes, 503, schema_of(body))}


def _headers() -> Json:
    integer = {"type": "integer", "minimum": 0}
    return {
        "x-request-id": {"description": "Names the request in logs.", "schema": {"type": "string"}},
        **{name: {"description": meaning, "schema": integer} for name, meaning in BATCH_HEADERS.items()},
        "retry-after": {
            "description": "Seconds after which to try again, if trying again makes sense.",
            "schema": {"type": "integer", "minimum": 1},
        },
    }


def encoded_document() -> bytes:
    """The document as JSON, indented, with a line end."""
    return msgspec.json.format(msgspec.json.encode(openapi_document()), indent=2) + b"\n"
