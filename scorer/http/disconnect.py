"""Stop working for a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from litestar.types import Receive

from scorer.errors import ClientGone

T = TypeVar("T")


async def while_connected(work: Awaitable[T], receive: Receive) -> T:
    """The result of ``work``, which is cancelled when the client closes the connection.

    The server does not do this: a handler runs to its end whoever listens. The body must have
    been read completely. The work runs in the task of the caller, as in :func:`asyncio.timeout`,
    since each task more delays the answer.

    Raises:
        ClientGone: the connection was closed before the work was done.
    """
    working = asyncio.current_task()
    assert working is not None, "a handler runs in a task"
    num_cancels = working.cancelling()
    watching = asyncio.ensure_future(_cancel_when_gone(working, receive))
    try:
        return await work
    except asyncio.CancelledError:
        if _has_gone(watching) and working.cancelling() == num_cancels + 1:  # and nobody else has cancelled it
            raise ClientGone("the client closed the connection before it was answered") from None
        raise
    finally:
        if _has_gone(watching):
            working.uncancel()
        watching.cancel()  # no effect once it is done


async def _cancel_when_gone(working: asyncio.Task[Any], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    working.cancel()


def _has_gone(watching: asyncio.Task[None]) -> bool:
    return watching.done() and not watching.cancelled() and watching.exception() is None
