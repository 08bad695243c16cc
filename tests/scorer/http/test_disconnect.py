from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scorer.errors import ClientGone
from scorer.http.disconnect import while_connected


class Client:
    """Sends nothing more, and may go."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def go(self) -> None:
        self._gone.set()

    async def receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}


async def _settled() -> None:
    """Let everything run that can: a cancellation that was left over would be raised here."""
    for _ in range(5):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert asyncio.all_tasks() == {task}


def test_the_result_is_that_of_the_work_and_nothing_goes_on_after_it() -> None:
    async def scenario() -> None:
        assert await while_connected(asyncio.sleep(0, "result"), Client().receive) == "result"
        await _settled()

    asyncio.run(scenario())


def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise LookupError("of the work")

    async def scenario() -> None:
        with pytest.raises(LookupError, match="of the work"):
            await while_connected(work(), Client().receive)
        await _settled()

    asyncio.run(scenario())


def test_work_for_a_client_that_goes_is_cancelled_and_has_ended_by_then() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ends.append("cancelled")
            raise

    async def scenario() -> None:
        client = Client()
        asyncio.get_running_loop().call_soon(client.go)
        with pytest.raises(ClientGone):
            await while_connected(work(), client.receive)
        assert ends == ["cancelled"]
        await _settled()

    asyncio.run(scenario())


def test_work_goes_on_where_nothing_can_be_heard_of_the_client() -> None:
    async def deaf() -> Any:
        raise OSError

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "result"

    async def scenario() -> None:
        assert await while_connected(work(), deaf) == "result"
        await _settled()

    asyncio.run(scenario())


@pytest.mark.parametrize("client_first", [True, False])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_client_that_goes_as_the_work_ends_leaves_no_cancellation_behind(client_first: bool, turns: int) -> None:
    async def scenario() -> None:
        client, result = Client(), asyncio.get_running_loop().create_future()
        events: list[Callable[[], Any]] = [client.go, lambda: result.set_result("result")]

        async def let_both_happen() -> None:
            first, second = events if client_first else events[::-1]
            await asyncio.sleep(0)
            first()
            for _ in range(turns):
                await asyncio.sleep(0)
            if not result.done() or second is client.go:
                second()

        happening = asyncio.ensure_future(let_both_happen())
        try:
            assert await while_connected(result, client.receive) == "result"
        except ClientGone:
            assert client_first
        await happening
        await _settled()

    asyncio.run(scenario())


@pytest.mark.parametrize("client_goes", [True, False])
def test_whoever_else_cancels_the_task_is_not_taken_for_the_client(client_goes: bool) -> None:
    async def handler(client: Client) -> None:
        await while_connected(_forever(), client.receive)

    async def scenario() -> None:
        client = Client()
        handling = asyncio.ensure_future(handler(client))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if client_goes:
            client.go()
        handling.cancel()
        await asyncio.wait({handling})
        assert handling.cancelled()
        await _settled()

    asyncio.run(scenario())


def _forever() -> Awaitable[None]:
    return asyncio.get_running_loop().create_future()
