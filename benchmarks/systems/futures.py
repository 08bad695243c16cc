"""One future out of several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

Part = TypeVar("Part")
Whole = TypeVar("Whole")


def combined(parts: Sequence[Future[Part]], combine: Callable[[list[Part]], Whole]) -> Future[Whole]:
    """``combine`` of all results, in their order, once the last of ``parts`` is there; or its error.

    Without parts the future is done at once.
    """
    whole: Future[Whole] = Future()
    left = len(parts)
    lock = threading.Lock()

    def finish() -> None:
        try:
            whole.set_result(combine([part.result() for part in parts]))
        except Exception as error:  # noqa: BLE001  whatever it is, the one who waits must hear of it
            whole.set_exception(error)

    def count(_: Future[Part]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            finish()

    if not parts:
        finish()
    for part in parts:
        part.add_done_callback(count)
    return whole


def done(result: Whole) -> Future[Whole]:
    """A future that has ``result``."""
    future: Future[Whole] = Future()
    future.set_result(result)
    return future
