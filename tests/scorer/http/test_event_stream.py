from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, Literal

import msgspec
import pytest

from engine import EngineClosed
from scorer.http.event_stream import EventStream
from scorer.http.request_record import RequestRecord

End = Literal["ends", "fails", "client_goes"]


class Word(msgspec.Struct):
    word: str


async def _words(end: End) -> AsyncIterator[tuple[str, msgspec.Struct]]:
    yield "said", Word("one")
    match end:
        case "fails":
            raise EngineClosed("gone")
        case "client_goes":
            await asyncio.Event().wait()
        case "ends":
            yield "said", Word("two\n")


def serve(end: End) -> tuple[str, RequestRecord, list[str]]:
    """What was sent, what was written down, and what was let go of."""
    sent: list[bytes] = []
    released: list[str] = []
    record = RequestRecord(request_id="r", method="POST")

    async def main() -> None:
        first = asyncio.Event()

        async def receive() -> Any:
            await (first if end == "client_goes" else asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert not released
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                first.set()

        held = ExitStack()
        held.callback(released.append, "held")
        response = EventStream(_words(end), record, held).to_asgi_response()
        async with asyncio.timeout(20):
            await response({}, receive, send)  # type: ignore[arg-type]

    asyncio.run(main())
    return b"".join(sent).decode(), record, released


@pytest.mark.parametrize("end", ["ends", "fails", "client_goes"])
def test_what_is_held_is_let_go_once_however_it_ends(end: End) -> None:
    _, _, released = serve(end)

    assert released == ["held"]


def test_each_event_is_a_name_and_one_line_of_data() -> None:
    sent, record, _ = serve("ends")

    assert sent == 'event: said\ndata: {"word":"one"}\n\nevent: said\ndata: {"word":"two\\n"}\n\n'
    assert record.outcome is None  # its own affair


def test_an_error_is_the_last_event_and_the_outcome() -> None:
    sent, record, _ = serve("fails")

    *_, last = sent.split("\n\n")[:-1]
    name, data = last.split("\n")
    assert name == "event: error"
    assert msgspec.json.decode(data.removeprefix("data: "))["error"]["code"] == "engine_closed"
    assert (record.outcome, record.error_code) == ("unavailable", "engine_closed")


def test_a_client_that_goes_is_the_outcome() -> None:
    sent, record, _ = serve("client_goes")

    assert sent.count("event: ") == 1
    assert (record.outcome, record.error_code) == ("cancelled", "client_closed_request")
