"""What is known of one request: written while it is served, read for its log line and metrics."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from scorer.dialects.error_forms import ErrorForm, native_error
from scorer.dialects.schema import REQUEST_ID
from scorer.http.trace_context import TraceContext, parse_traceparent
from scorer.metrics import RequestOutcome

_REQUEST_ID = re.compile(REQUEST_ID)
_KEY = "request_record"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Belongs to the task that serves the request. Holds no text of the client's.

    Args:
        started_s: ``time.monotonic()`` at arrival.
        error_form: How an error is worded; set as soon as the route, and then the body, tell.
        scoring: Whether it asks for scores; others are neither measured nor logged at info.
        tenant: Who is calling, where tenants are told apart; set when that is known.
        trace: The trace that it is part of, if its sender said so.
    """

    request_id: str
    method: str
    started_s: float = field(default_factory=time.monotonic)
    scoring: bool = False
    tenant: str | None = None
    trace: TraceContext | None = None
    error_form: ErrorForm = native_error
    outcome: RequestOutcome | None = None
    error_code: str | None = None
    num_pairs: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s


def open_record(scope: Any, header: str | None, traceparent: str | None = None) -> RequestRecord:
    """Put a new record into an ASGI scope.

    Args:
        header: ``x-request-id`` as sent; one that is not a plain short name is replaced.
        traceparent: That header as sent; one that is not well formed is ignored.
    """
    request_id = header if header and _REQUEST_ID.match(header) else uuid.uuid4().hex
    record = RequestRecord(request_id=request_id, method=scope["method"], trace=parse_traceparent(traceparent))
    scope.setdefault("state", {})[_KEY] = record
    return record


def record_of(scope: Any) -> RequestRecord:
    """The record of the request that ``scope`` belongs to."""
    record = scope["state"][_KEY]
    assert isinstance(record, RequestRecord)
    return record
