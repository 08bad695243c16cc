"""Refuse early: how many requests are under way, and how many bytes of bodies are held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scorer.errors import Overloaded

_BUSY_RETRY_S = 1.0


class Admission:
    """Counts what is under way and refuses what is over the limits.

    Nothing waits here: work that is accepted waits in the engine's queue, work that is not is
    told to come back. Belongs to the event loop.

    Invariant: ``num_requests`` and ``buffered_bytes`` are 0 when nothing is under way.
    """

    def __init__(self, *, max_requests: int, max_buffered_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_buffered_bytes = max_buffered_bytes
        self.num_requests = 0
        self.buffered_bytes = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold one place while a request is scored. Taken once its body is complete, so that
        slow senders hold none.

        Raises:
            Overloaded: all places are taken.
        """
        if self.num_requests >= self._max_requests:
            raise Overloaded(
                f"{self.num_requests} requests are under way, the limit is {self._max_requests}",
                value=self.num_requests,
                limit=self._max_requests,
                retry_after_s=_BUSY_RETRY_S,
            )
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @contextmanager
    def buffer(self) -> Iterator[BodyBuffer]:
        """A buffer for one body; what it holds counts until the block ends."""
        buffer = BodyBuffer(self)
        try:
            yield buffer
        finally:
            buffer.release()

    def take_bytes(self, count: int) -> None:
        """Count ``count`` more buffered bytes.

        Raises:
            Overloaded: the bodies of all requests together would be over the limit.
        """
        if self.buffered_bytes + count > self._max_buffered_bytes:
            raise Overloaded(
                f"the bodies of all requests under way would take {self.buffered_bytes + count} bytes, "
                f"the limit is {self._max_buffered_bytes}",
                value=self.buffered_bytes + count,
                limit=self._max_buffered_bytes,
                retry_after_s=_BUSY_RETRY_S,
            )
        self.buffered_bytes += count

    def return_bytes(self, count: int) -> None:
        self.buffered_bytes -= count


class BodyBuffer:
    """The bytes of one body, counted against the limit of all."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def append(self, chunk: bytes) -> None:
        """Add a chunk.

        Raises:
            Overloaded: the bodies of all requests together would be over the limit.
        """
        self._admission.take_bytes(len(chunk))
        self._data += chunk

    def content(self) -> bytes:
        return bytes(self._data)

    def release(self) -> None:
        self._admission.return_bytes(len(self._data))
        self._data = bytearray()
