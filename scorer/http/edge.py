"""Wraps the application: every request gets an id, a record, a log line and its metrics.

Middleware of the framework does not see requests that no route matches; this does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from scorer.dialects.error_forms import ErrorForm, native_error
from scorer.http.request_record import RequestRecord, open_record
from scorer.http.trace_context import TRACE_HEADER
from scorer.logs import UNMATCHED, log_request
from scorer.metrics import Metrics, RequestOutcome

REQUEST_ID_HEADER = "x-request-id"

ERROR_FORM: Final = "error_form"
"""Option of a handler: the form of errors that come before it is called, such as a wrong method."""


def error_forms(handlers: Iterable[HTTPRouteHandler]) -> Mapping[str, ErrorForm]:
    """By path; of handlers that share one, the form of the first."""
    forms: dict[str, ErrorForm] = {}
    for handler in handlers:
        for path in handler.paths:
            forms.setdefault(path, handler.opt.get(ERROR_FORM, native_error))
    return forms


class Edge:
    """An ASGI application around another one.

    Args:
        error_forms: How errors are worded before a handler says how, by path.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, error_forms: Mapping[str, ErrorForm]) -> None:
        self._app = app
        self._metrics = metrics
        self._error_forms = error_forms

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = open_record(scope, _header(scope, REQUEST_ID_HEADER), _header(scope, TRACE_HEADER))
        record.error_form = self._error_forms.get(scope["path"].rstrip("/") or "/", native_error)
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = (REQUEST_ID_HEADER.encode(), record.request_id.encode())
                message["headers"] = [*message["headers"], own]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._finish(scope, record, status)

    def _finish(self, scope: Scope, record: RequestRecord, status: int) -> None:
        route = scope.get("path_template") or UNMATCHED
        if record.outcome is None:
            record.outcome = _outcome_of(status)
        # Probes and pages are not requests for scores: counting them would hide what those take.
        if record.scoring or route == UNMATCHED:
            self._metrics.observe_request(route=route, outcome=record.outcome, seconds=record.elapsed_s())
            if record.error_code is not None:
                self._metrics.count_error(record.error_code)
        log_request(record, route=route, status=status)


def _outcome_of(status: int) -> RequestOutcome:
    if status < 400:
        return "ok"
    return "invalid" if status < 500 else "fault"


def _header(scope: HTTPScope, name: str) -> str | None:
    for key, value in scope["headers"]:
        if key == name.encode():
            return value.decode("latin-1")
    return None
