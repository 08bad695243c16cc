"""One HTTP request handed to an ASGI application by hand, which its client may break off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.helpers.service import PATIENCE_S


class Exchange:
    """A request with a JSON body. Belongs to the event loop that it was made in."""

    def __init__(self, application: Callable[..., Awaitable[None]], path: str, body: Any) -> None:
        self._application = application
        self._body: bytes | None = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "scheme": "http", "http_version": "1.1",
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "", "asgi": {"version": "3.0"},
            "extensions": {}, "state": {},
        }  # fmt: skip
        self.status: int | None = None
        self.sent = b""

    async def run(self) -> None:
        """Return when the application has done with it."""
        await self._application(self._scope, self._receive, self._send)

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def until_sent(self, part: bytes) -> None:
        """Return when ``part`` has been sent."""
        async with asyncio.timeout(PATIENCE_S):
            while part not in self.sent:
                await asyncio.sleep(0.001)

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.sent += message["body"]
