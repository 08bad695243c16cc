"""The OpenAPI document, made from the wire structs; ``python -m scorer.openapi`` prints it.

Built here and not by the web framework, because handlers read their bodies themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from scorer import openapi_examples as examples
from scorer.error_forms import ErrorBody
from scorer.errors import ANSWERS
from scorer.probes import Info, Liveness, ModelList, Readiness
from scorer.schema import REQUEST_ID, ScoreRequest, ScoreResponse
from scorer.schema_rerank import RerankRequest, RerankResponse

Json: TypeAlias = dict[str, Any]

API_VERSION: Final = "1"
_STRUCTS: Final = (
    ScoreRequest,
    ScoreResponse,
    RerankRequest,
    RerankResponse,
    ErrorBody,
    Liveness,
    Readiness,
    ModelList,
    Info,
)
_MEANING: Final = {
    400: "The body is not strict JSON: malformed, nested too deeply, a duplicate key, half a surrogate pair, NaN.",
    404: "Another model is asked for than the one that is served.",
    408: "The body did not arrive in time.",
    413: "The body is too large; `limit` says how large it may be.",
    415: "The body is not sent as uncompressed `application/json` in UTF-8.",
    422: "A type or value in the body is wrong; `field`, `value` and `limit` say which and why.",
    429: "Over an admission limit. Come back after `Retry-After` seconds.",
    500: "A fault of the service, or no document got a finite score.",
    503: "The model is loading, draining, or the engine has failed.",
    504: "The deadline passed before any pair was scored.",
}
_SCORE_ERRORS: Final = (400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
_RERANK_ERRORS: Final = (400, 408, 413, 415, 422, 429, 500, 503, 504)


def openapi_document() -> Json:
    """OpenAPI 3.1, complete with examples and every error."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
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
        "paths": {
            "/v1/batches/score": {"post": _score_operation()},
            "/v1/rerank": {"post": _rerank_operation()},
            **_probe_paths(),
            **_page_paths(),
        },
        "components": {"schemas": components, "headers": _headers()},
    }


def _score_operation() -> Json:
    return {
        "operationId": "scoreBatch",
        "tags": ["scoring"],
        "summary": "Score queries × documents, or chosen pairs",
        "description": (
            "A pair that cannot be scored has an `error` and does not spoil the others. When the deadline passes, "
            "what is scored by then is returned and the rest is `unscored`. Unknown fields are refused. Texts are "
            "data: no special token can come from them."
        ),
        "parameters": [_request_id_parameter()],
        "requestBody": _body("ScoreRequest", examples.SCORE_REQUESTS),
        "responses": {
            "200": _success("ScoreResponse", "Scores.", examples.SCORE_RESPONSE, scoring=True),
            **_errors(_SCORE_ERRORS),
        },
    }


def _rerank_operation() -> Json:
    return {
        "operationId": "rerank",
        "tags": ["scoring"],
        "summary": "Rank documents for a query, in the form of Jina and Cohere",
        "description": "Unknown fields are ignored, optional fields may be null.",
        "parameters": [_request_id_parameter()],
        "requestBody": _body("RerankRequest", examples.RERANK_REQUESTS),
        "responses": {
            "200": _success("RerankResponse", "Ranked documents.", examples.RERANK_RESPONSE, scoring=True),
            **_errors(_RERANK_ERRORS),
        },
    }


def _probe_paths() -> Json:
    return {
        "/health/live": _get(
            "live",
            "Whether a restart would help",
            {"200": _success("Liveness", "Alive."), "503": _success("Liveness", "Dead: restart it.")},
        ),
        "/health/ready": _get(
            "ready",
            "Whether requests are served",
            {"200": _success("Readiness", "Ready."), "503": _success("Readiness", "Not ready; `reason` says why.")},
        ),
        "/v1/models": _get(
            "models", "The model that is served", {"200": _success("ModelList", "One model."), **_errors((503,))}
        ),
        "/info": _get(
            "info", "What is running, and its limits", {"200": _success("Info", "What is running."), **_errors((503,))}
        ),
    }


def _page_paths() -> Json:
    metrics = {
        "description": "Prometheus text, or OpenMetrics where `Accept` names it.",
        "headers": _response_headers(scoring=False),
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


def _body(schema: str, shown: Mapping[str, Any]) -> Json:
    return {"required": True, "content": {"application/json": {"schema": _ref(schema), "examples": dict(shown)}}}


def _success(schema: str, description: str, example: Json | None = None, *, scoring: bool = False) -> Json:
    content: Json = {"schema": _ref(schema)}
    if example is not None:
        content["example"] = example
    return {
        "description": description,
        "headers": _response_headers(scoring=scoring),
        "content": {"application/json": content},
    }


def _plain(media_type: str, description: str) -> Json:
    return {
        "description": description,
        "headers": _response_headers(scoring=False),
        "content": {media_type: {"schema": {"type": "object" if media_type == "application/json" else "string"}}},
    }


def _errors(statuses: tuple[int, ...]) -> Json:
    return {str(status): _error(status) for status in statuses}


def _error(status: int) -> Json:
    codes = [answer.code for answer in ANSWERS.values() if answer.status == status]
    codes += ["internal_error"] if status == 500 else []
    headers = _response_headers(scoring=False)
    if status in {429, 503}:
        headers["retry-after"] = {"$ref": "#/components/headers/retry-after"}
    return {
        "description": f"{_MEANING[status]} `code`: {', '.join(f'`{code}`' for code in codes)}.",
        "headers": headers,
        "content": {"application/json": {"schema": _ref("ErrorBody")}},
    }


def _headers() -> Json:
    integer = {"type": "integer", "minimum": 0}
    return {
        "x-request-id": {"description": "Names the request in logs.", "schema": {"type": "string"}},
        "x-cached-tokens": {"description": "Tokens found in the cache.", "schema": integer},
        "x-computed-tokens": {"description": "Tokens that the model ran.", "schema": integer},
        "retry-after": {
            "description": "Seconds after which to try again, if trying again makes sense.",
            "schema": {"type": "integer", "minimum": 1},
        },
    }


def _response_headers(*, scoring: bool) -> Json:
    names = ["x-request-id", "x-cached-tokens", "x-computed-tokens"] if scoring else ["x-request-id"]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _request_id_parameter() -> Json:
    return {
        "name": "x-request-id",
        "in": "header",
        "required": False,
        "description": f"A name for the request; one that does not match `{REQUEST_ID}` is replaced.",
        "schema": {"type": "string"},
    }


def _ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def encoded_document() -> bytes:
    """The document as JSON, indented, with a line end."""
    return msgspec.json.format(msgspec.json.encode(openapi_document()), indent=2) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(encoded_document())
