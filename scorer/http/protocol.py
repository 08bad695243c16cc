"""HTTP/1.1 with an end to waiting: a connection cannot be held open by sending slowly.

The server times idle connections between requests, and the application times bodies. What is
left is the request line and headers, which no handler sees before they are complete, and
bodies that go on after they have been answered.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes connections whose headers do not arrive in time or do not end.

    Subclasses made by :func:`bounded_protocol` carry the times.
    """

    header_timeout_s: ClassVar[float]
    linger_s: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._in_body = False
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self.header_timeout_s)  # the first byte has to come in time, too

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if not self._in_headers:
            return
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(_TOO_LONG)
        elif self._timer is None:  # most often headers come in one piece, and none is needed
            self._arm(self.header_timeout_s)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0
        self._disarm()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._in_body = True
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body:
            self._arm(self.linger_s)  # answered before the body ended, and nobody reads the rest

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._refuse, _TOO_SLOW)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way:  # a pipelined request: let the answer before it go out first
            self.cycle.keep_alive = False
            return
        if self._in_headers or self.cycle is None:
            self.transport.write(answer)
        self.transport.close()


def bounded_protocol(*, header_timeout_s: float, linger_s: float) -> type[BoundedHttpProtocol]:
    """The protocol class with its times.

    Args:
        header_timeout_s: From the connection, or the first byte of a further request, to the
            end of the headers.
        linger_s: How long the rest of a body is still taken after it has been answered.
    """

    class Bounded(BoundedHttpProtocol):
        pass

    Bounded.header_timeout_s = header_timeout_s
    Bounded.linger_s = linger_s
    return Bounded
