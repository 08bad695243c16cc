"""JSON over HTTP/1.1 to one server on this machine, with connections that are kept."""

from __future__ import annotations

import contextlib
import http
import http.client
from typing import Any
from urllib.parse import urlsplit

import msgspec

_TIMEOUT_S = 900.0


class HttpError(Exception):
    """The server answered with another status than 200; the message holds the start of its body."""


class JsonClient:
    """Safe to use from any number of threads; each request has a connection for itself."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; wanted something like http://127.0.0.1:8311")
        self._host, self._port, self._root = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._idle: list[http.client.HTTPConnection] = []

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.text(path))

    def text(self, path: str) -> bytes:
        return self._send("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        return msgspec.json.decode(self._send("POST", path, msgspec.json.encode(body)))

    def close(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            self._idle.pop().close()

    def _send(self, method: str, path: str, body: bytes | None) -> bytes:
        with contextlib.suppress(IndexError):
            kept = self._idle.pop()
            # servers close connections that were idle for a while
            with contextlib.suppress(ConnectionError):
                return self._exchange(kept, method, path, body)
        fresh = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        return self._exchange(fresh, method, path, body)

    def _exchange(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None) -> bytes:
        """One request and its reply; the connection is kept for the next if both were complete."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, self._root + path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if reply.status != http.HTTPStatus.OK:
            raise HttpError(f"{method} {path}: status {reply.status}: {content[:500].decode(errors='replace')}")
        return content
