"""The one table from what went wrong to what the client is told.

    Refusal                  the service itself refuses the request
      Unauthenticated        it is not known who is calling
      UnsupportedMedia       the body is not sent as JSON
      BodyTimeout            the body did not arrive in time
      BodyTooLarge           the body is over the limit
      MalformedBody          the body is not (strict) JSON
      InvalidValue           the JSON has a wrong type or value, at a path that is named
      UnknownModel           another model is asked for than the one that is served
      Overloaded             too many requests are under way
      NotReady               the model is loading, has failed to load, or is draining
      ClientGone             the client closed the connection
      NoFiniteScore          the model gave NaN or infinity for everything that was asked

Errors of the engine are in the table as well; what is not in it is a fault of ours: 500.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from litestar.exceptions import HTTPException

from engine import (
    CheckpointError,
    DeadlineExceeded,
    DeviceError,
    EngineClosed,
    EngineFault,
    InvalidTask,
    OutOfCapacity,
)
from scorer.metrics import ErrorCode, RequestOutcome


class Refusal(Exception):
    """A request that the service does not serve.

    Args:
        message: What was wanted and what was got; never text of the client.
        field: Path of the part to blame, like ``documents[3].text``.
        value: What was got: a number, or the length of a text or list.
        limit: What it must not pass.
        retry_after_s: When it makes sense to come back.
    """

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: float | str | None = None,
        limit: float | str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.limit = limit
        self.retry_after_s = retry_after_s


class Unauthenticated(Refusal):
    """It is not known who is calling, and this service has to know."""


class UnsupportedMedia(Refusal):
    """The body is not sent as plain JSON."""


class BodyTimeout(Refusal):
    """The body did not arrive in time."""

    retryable = True


class BodyTooLarge(Refusal):
    """The body is over the limit."""


class MalformedBody(Refusal):
    """The body is not strict JSON."""


class InvalidValue(Refusal):
    """The JSON is fine, a type or value in it is not."""


class UnknownModel(Refusal):
    """Another model is asked for than the one that is served."""


class Overloaded(Refusal):
    """Too many requests are under way, or too many bytes of their bodies."""

    retryable = True


class NotReady(Refusal):
    """The model is loading, has failed to load, or is draining."""

    retryable = True


class ClientGone(Refusal):
    """The client closed the connection; nobody reads this answer."""


class NoFiniteScore(Refusal):
    """The model gave NaN or infinity for everything that was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one kind of error is reported."""

    status: int
    code: ErrorCode
    outcome: RequestOutcome


ANSWERS: dict[type[Exception], Answer] = {
    MalformedBody: Answer(400, "malformed_json", "invalid"),
    Unauthenticated: Answer(401, "unauthenticated", "invalid"),
    UnknownModel: Answer(404, "model_not_found", "invalid"),
    BodyTimeout: Answer(408, "body_timeout", "invalid"),
    BodyTooLarge: Answer(413, "body_too_large", "invalid"),
    UnsupportedMedia: Answer(415, "unsupported_media_type", "invalid"),
    InvalidValue: Answer(422, "invalid_value", "invalid"),
    InvalidTask: Answer(422, "invalid_task", "invalid"),
    Overloaded: Answer(429, "overloaded", "refused"),
    OutOfCapacity: Answer(429, "out_of_capacity", "refused"),
    ClientGone: Answer(499, "client_closed_request", "cancelled"),
    NoFiniteScore: Answer(500, "non_finite_score", "fault"),
    NotReady: Answer(503, "not_ready", "unavailable"),
    EngineClosed: Answer(503, "engine_closed", "unavailable"),
    EngineFault: Answer(503, "engine_fault", "fault"),
    CheckpointError: Answer(503, "model_failed_to_load", "unavailable"),
    DeviceError: Answer(503, "device_unusable", "unavailable"),
    DeadlineExceeded: Answer(504, "deadline_exceeded", "deadline"),
}

INTERNAL = Answer(500, "internal_error", "fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a client is told of an error, in no wire form yet: see :mod:`scorer.dialects.error_forms`.

    Args:
        status: HTTP status of the native form; other dialects may use another one.
        code: Name of the kind of error, the same in every dialect that has a place for it.
        headers: Sent with the answer, whatever its form.
    """

    status: int
    code: str
    outcome: RequestOutcome
    message: str
    retryable: bool
    request_id: str
    headers: Mapping[str, str]
    field: str | None = None
    value: float | int | str | None = None
    limit: float | int | str | None = None


def answer_for(error: BaseException) -> Answer:
    """The table's entry for ``error`` or for the nearest of its base classes."""
    for kind in type(error).__mro__:
        if kind in ANSWERS:
            return ANSWERS[kind]
    return INTERNAL


def failure_of(error: Exception, *, request_id: str) -> Failure:
    """What the client is told of ``error``."""
    if isinstance(error, HTTPException):
        return _framework_failure(error, request_id=request_id)
    answer = answer_for(error)
    retryable = getattr(error, "retryable", False)
    headers: dict[str, str] = {}
    if retryable and answer.status in {429, 503}:
        headers["retry-after"] = str(max(1, math.ceil(getattr(error, "retry_after_s", None) or 1.0)))
    if answer.status == 401:
        headers["www-authenticate"] = "Bearer"
    if answer.status in {408, 413}:
        headers["connection"] = "close"  # what is left of the body is not worth waiting for
    return Failure(
        status=answer.status,
        code=answer.code,
        outcome=answer.outcome,
        message="the service failed; the log has the reason" if answer is INTERNAL else str(error),
        retryable=retryable,
        request_id=request_id,
        field=getattr(error, "field", None),
        value=getattr(error, "value", None),
        limit=getattr(error, "limit", None),
        headers=headers,
    )


def _framework_failure(error: HTTPException, *, request_id: str) -> Failure:
    """404, 405 and whatever else the web framework refuses by itself."""
    status = HTTPStatus(error.status_code)
    return Failure(
        status=int(status),
        code=status.name.lower(),
        outcome="fault" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid",
        message=f"{status.phrase.lower()}: see /docs",
        retryable=False,
        request_id=request_id,
        headers=dict(error.headers or {}),
    )
