"""Errors in the form of the dialect that was spoken.

What went wrong, its code and its native status come from the one table in :mod:`scorer.errors`.
A form says what the body looks like and which status the dialect has for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeAlias

from msgspec import Struct

from scorer.errors import Failure
from scorer.http.wire_path import steps_of


@dataclass(frozen=True, slots=True)
class WireError:
    """An error as it goes over the wire."""

    status: int
    body: Struct


ErrorForm: TypeAlias = Callable[[Failure], WireError]


class ErrorDetail(Struct, omit_defaults=True, frozen=True):
    """What went wrong, for programs (`code`, `field`, `value`, `limit`) and for people (`message`)."""

    code: str
    message: str
    retryable: bool
    request_id: str
    field: str | None = None
    value: float | int | str | None = None
    limit: float | int | str | None = None


class ErrorBody(Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


def native_error(failure: Failure) -> WireError:
    """The form of the native route and of every route that speaks no dialect."""
    detail = ErrorDetail(
        code=failure.code,
        message=failure.message,
        retryable=failure.retryable,
        request_id=failure.request_id,
        field=failure.field,
        value=failure.value,
        limit=failure.limit,
    )
    return WireError(failure.status, ErrorBody(error=detail))


class VllmErrorDetail(Struct, frozen=True):
    """`code` repeats the HTTP status; `param` is the field to blame."""

    message: str
    type: str
    param: str | None
    code: int


class VllmErrorBody(Struct, frozen=True):
    """Errors in the form of vLLM."""

    error: VllmErrorDetail


_VLLM_TYPES = {400: "BadRequestError", 404: "NotFoundError", 501: "NotImplementedError", 503: "ServiceUnavailableError"}


def vllm_error(failure: Failure) -> WireError:
    """A nested ``error``; values that cannot be served are 400."""
    status = _as_bad_request(failure)
    kind = _VLLM_TYPES.get(status) or ("InternalServerError" if status == 500 else _camel(status))
    detail = VllmErrorDetail(message=failure.message, type=kind, param=failure.field, code=status)
    return WireError(status, VllmErrorBody(error=detail))


class OpenAiErrorDetail(Struct, frozen=True):
    """`code` names the kind of error, `param` the field to blame."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str


class OpenAiErrorBody(Struct, frozen=True):
    """Errors in the form of OpenAI."""

    error: OpenAiErrorDetail


def openai_error(failure: Failure) -> WireError:
    """A nested ``error`` with codes in words; values that cannot be served are 400."""
    status = _as_bad_request(failure)
    if status == 429:
        kind: Literal["invalid_request_error", "rate_limit_error", "server_error"] = "rate_limit_error"
    else:
        kind = "server_error" if status >= 500 else "invalid_request_error"
    detail = OpenAiErrorDetail(message=failure.message, type=kind, param=failure.field, code=failure.code)
    return WireError(status, OpenAiErrorBody(error=detail))


class SglangErrorBody(Struct, frozen=True):
    """Errors in the form of SGLang: flat; `code` repeats the HTTP status."""

    object: Literal["error"]
    message: str
    type: str
    param: str | None
    code: int


def sglang_error(failure: Failure) -> WireError:
    """Flat; values that cannot be served are 400."""
    status = _as_bad_request(failure)
    kind = "BadRequestError" if status == 400 else "InternalServerError" if status == 500 else _camel(status)
    body = SglangErrorBody(object="error", message=failure.message, type=kind, param=failure.field, code=status)
    return WireError(status, body)


class ErrorEntry(Struct, frozen=True):
    """One thing that is wrong: where, what, and the kind of error."""

    loc: list[str | int]
    msg: str
    type: str


class DetailErrorBody(Struct, frozen=True):
    """Errors in the form of FastAPI."""

    detail: list[ErrorEntry]


def detail_error(failure: Failure) -> WireError:
    """A list of one; whatever is wrong with a body is 422."""
    path = [] if failure.field in {None, "body"} else steps_of(failure.field or "")
    place = "header" if failure.status in {401, 415} else "body"
    entry = ErrorEntry(loc=[place, *path], msg=failure.message, type=failure.code)
    status = 422 if failure.status == 400 else failure.status
    return WireError(status, DetailErrorBody(detail=[entry]))


TeiErrorType: TypeAlias = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class TeiErrorBody(Struct, frozen=True):
    """Errors in the form of text-embeddings-inference."""

    error: str
    error_type: TeiErrorType


def tei_error(failure: Failure) -> WireError:
    """Its kinds are few; a failure of ours is one of its back end, 424 there."""
    if _is_empty_input(failure):
        return WireError(400, TeiErrorBody(error=failure.message, error_type="Empty"))
    match failure.status:
        case 429:
            kind: TeiErrorType = "Overloaded"
        case 503:
            kind = "Unhealthy"
        case 500 | 504:
            return WireError(424, TeiErrorBody(error=failure.message, error_type="Backend"))
        case _:
            kind = "Validation"
    return WireError(failure.status, TeiErrorBody(error=failure.message, error_type=kind))


def _is_empty_input(failure: Failure) -> bool:
    """Whether nothing was sent to be scored."""
    return failure.field in {"inputs", "texts"} and (failure.value, failure.limit) == (0, 1)


def _as_bad_request(failure: Failure) -> int:
    return 400 if failure.status == 422 else failure.status


def _camel(status: int) -> str:
    """Such as ``RequestEntityTooLargeError``."""
    if status == 499:  # nginx's, which the standard library does not know
        return "ClientClosedRequestError"
    return HTTPStatus(status).name.title().replace("_", "") + "Error"
