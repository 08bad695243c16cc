"""Answers with server-sent events, until they end or the client goes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from scorer.errors import INTERNAL, ClientGone, answer_for, failure_of
from scorer.http.disconnect import while_connected
from scorer.http.request_record import RequestRecord

_LOG = logging.getLogger(__name__)
_MEDIA_TYPE = "text/event-stream"


class EventStream(Response[bytes]):
    """A response of events, each a name and its data.

    Args:
        events: An error that it raises becomes the last event, ``error``.
        held: Closed when the response has ended, however it ended.
    """

    def __init__(
        self, events: AsyncIterator[tuple[str, msgspec.Struct]], record: RequestRecord, held: ExitStack
    ) -> None:
        super().__init__(b"", media_type=_MEDIA_TYPE)
        self._serving = _Serving(events, record, held)

    def to_asgi_response(self, *_args: Any, **_options: Any) -> ASGIResponse:
        return self._serving


class _Serving(ASGIResponse):
    def __init__(
        self, events: AsyncIterator[tuple[str, msgspec.Struct]], record: RequestRecord, held: ExitStack
    ) -> None:
        super().__init__(media_type=_MEDIA_TYPE)
        self._events = events
        self._record = record
        self._held = held

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            try:
                await while_connected(self._serve(send), receive)
            except ClientGone as error:
                answer = answer_for(error)
                self._record.outcome, self._record.error_code = answer.outcome, answer.code

    async def _serve(self, send: Send) -> None:
        headers = [(b"content-type", f"{_MEDIA_TYPE}; charset=utf-8".encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for name, data in self._events:
                await _send_event(send, name, data)
        except Exception as error:  # noqa: BLE001  the status has been sent: any error has to be told in the stream
            await _send_event(send, "error", self._told(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _told(self, error: Exception) -> msgspec.Struct:
        record = self._record
        failure = failure_of(error, request_id=record.request_id)
        if answer_for(error) is INTERNAL:
            _LOG.error("unexpected error", exc_info=error, extra={"fields": {"request_id": record.request_id}})
        record.outcome, record.error_code = failure.outcome, failure.code
        return record.error_form(failure).body


async def _send_event(send: Send, name: str, data: msgspec.Struct) -> None:
    body = b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})
