from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest

from scorer.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    InvalidValue,
    MalformedBody,
    Overloaded,
    UnsupportedMedia,
)
from scorer.http.admission import Admission, BodyBuffer
from scorer.http.json_body import StrictDecoder, read_body, require_json
from tests.helpers.service import PATIENCE_S, RERANK, SCORE, service

GOOD = {"queries": ["q"], "documents": ["d"]}


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    kind: Literal["one", "two"] = "one"


class Outer(msgspec.Struct):
    items: Annotated[list[str | Inner], msgspec.Meta(min_length=1, max_length=3)]
    count: Annotated[int, msgspec.Meta(ge=1, le=10)] | None = None
    share: Annotated[float, msgspec.Meta(ge=0.5)] = 1.0
    other: Any = None


DECODER = StrictDecoder(Outer)


def decode(body: bytes | str) -> Outer:
    return DECODER.decode(body if isinstance(body, bytes) else body.encode())


@pytest.mark.parametrize(
    "body",
    [
        "",
        "  ",
        "{",
        "items",
        '{"items": ["a"]} x',
        '{"items": ["a"],}',
        "{'items': ['a']}",
        '{"items": ["a"], "share": NaN}',
        '{"items": ["a"], "other": Infinity}',
        '{"items": ["a\nb"]}',
        '\ufeff{"items": ["a"]}',
        '{"items": ["\\ud800"]}',
        '{"items": ["\\udc00tail"]}',
        '{"items": ["a"], "skipped": "\\ud800"}',
        b'{"items": ["\xff"]}',
        b'{"items": ["a"], "skipped": "\xff"}',
        '{"items": 5, "share": NaN}',
        '{"items": ["a"], "items": ["b"]}',
        '{"items": ["a"], "skipped": {"x": 1, "x": 2}}',
        '{"items": 5, "items": ["b"]}',
        '{"items": ["a"], "i\\u0074ems": ["b"]}',
        '{"items": ["a"], "skipped": {"x\\"": 1, "x\\"" : 2}}',
        '{"items": ["a"], "skipped": {"\\"x": 1, "\\u0022x": 2}}',
    ],
)
def test_what_is_not_strict_json_is_malformed(body: bytes | str) -> None:
    with pytest.raises(MalformedBody):
        decode(body)


@pytest.mark.parametrize(
    "body",
    [
        '{"items": ["a"], "skipped": [{"x": 1}, {"x": 2}]}',
        '{"items": ["a"], "skipped": {"x": 1, "y": {"x": 2}}}',
        '{"items": ["a"], "skipped": {"x": 1, "\\"x": 2, "x\\"": 3, "x\\\\": 4}}',
        '{"items": ["\\"items\\": 1, \\"items\\": 2"]}',
        '{"items": ["a"], "skipped": "é\\": "}',
    ],
)
def test_a_key_may_occur_again_in_another_object_or_in_a_text(body: str) -> None:
    assert len(decode(body).items) == 1


def test_b008_a_whole_surrogate_pair_is_text() -> None:
    assert decode('{"items": ["\\ud83d\\ude00"]}').items == ["😀"]


def test_b008_half_a_pair_is_not_explained_as_truncated_input() -> None:
    with pytest.raises(MalformedBody) as caught:
        decode('{"items": ["\\ud800"]}')

    assert "truncated" not in str(caught.value)


@pytest.mark.parametrize("depth", [998, 5_000, 100_000])
@pytest.mark.parametrize("field", ["skipped", "other", "items"])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_b033_deep_nesting_is_malformed(depth: int, field: str, brackets: str) -> None:
    opening = "[" if brackets == "[]" else '{"x":'
    value = opening * depth + "1" + brackets[1] * depth
    with pytest.raises(MalformedBody):
        decode(f'{{"{field}":{value}, "items": ["a"]}}')


@pytest.mark.parametrize(
    ("body", "field", "value", "limit"),
    [
        ("{}", "items", None, None),
        ("[]", "body", 0, None),
        ("null", "body", None, None),
        ('{"items": []}', "items", 0, 1),
        ('{"items": ["a", "b", "c", "d"]}', "items", 4, 3),
        ('{"items": ["a", 1]}', "items[1]", 1, None),
        ('{"items": ["a", {"text": "b", "x": 1}]}', "items[1].x", None, None),
        ('{"items": ["a", {"kind": "one"}]}', "items[1].text", None, None),
        ('{"items": [{"text": "b", "kind": "six"}]}', "items[0].kind", 3, "one, two"),
        ('{"items": ["a"], "count": 0}', "count", 0, 1),
        ('{"items": ["a"], "count": 11}', "count", 11, 10),
        ('{"items": ["a"], "count": 1.0}', "count", 1.0, None),
        ('{"items": ["a"], "count": true}', "count", "true", None),
        ('{"items": ["a"], "count": 18446744073709551616}', "count", "18446744073709551616", 10),
        ('{"items": ["a"], "count": -9223372036854775809}', "count", "-9223372036854775809", 1),
        ('{"items": ["a"], "share": 0.25}', "share", 0.25, 0.5),
        ('{"items": ["a"], "share": 1e999}', "share", None, None),
        (f'{{"items": ["a"], "count": {"9" * 5000}}}', "count", None, None),
        (f'{{"items": ["a"], "share": {"9" * 400}}}', "share", "a number of 400 digits", None),
    ],
)
def test_a_wrong_value_is_named_with_its_size_and_limit(body: str, field: str, value: object, limit: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode(body)

    assert (caught.value.field, caught.value.value, caught.value.limit) == (field, value, limit)
    msgspec.json.encode([caught.value.value, caught.value.limit])  # it can be sent


def test_no_error_repeats_text_of_the_body() -> None:
    for body in ('{"items": ["a"], "count": "SECRET"}', '{"items": [{"text": "a", "kind": "SECRET"}]}', '"SECRET"'):
        with pytest.raises(InvalidValue) as caught:
            decode(body)
        assert "SECRET" not in f"{caught.value} {caught.value.value} {caught.value.limit}"


def test_numbers_of_any_length_are_skipped_where_nobody_reads_them() -> None:
    assert decode(f'{{"items": ["a"], "skipped": {"9" * 10_000}}}').items == ["a"]


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "application/x.y+json"],
)
def test_json_media_types_are_taken(content_type: str) -> None:
    require_json({"content-type": content_type})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonp"},
        {"content-type": "application/json; charset=latin-1"},
    ],
)
def test_other_media_types_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(UnsupportedMedia):
        require_json(headers)


class Sender:
    """Stands for the connection: gives chunks, then waits or closes."""

    def __init__(self, chunks: Iterable[bytes], *, then: Literal["end", "silence", "close"] = "end") -> None:
        self._chunks = list(chunks)
        self._then = then
        self.num_given = 0

    async def __call__(self) -> Any:
        if self.num_given < len(self._chunks):
            self.num_given += 1
            last = self.num_given == len(self._chunks) and self._then == "end"
            return {"type": "http.request", "body": self._chunks[self.num_given - 1], "more_body": not last}
        if self._then == "close":
            return {"type": "http.disconnect"}
        return await asyncio.Event().wait()


class Peak(BodyBuffer):
    """Remembers the most bytes it ever held."""

    peak = 0

    def append(self, chunk: bytes) -> None:
        super().append(chunk)
        self.peak = max(self.peak, len(self))


def read(sender: Sender, *, limit: int = 100, length: int | None = None, timeout_s: float = 5.0) -> tuple[bytes, Peak]:
    buffer = Peak(Admission(max_requests=1, max_buffered_bytes=1000))
    headers = {} if length is None else {"content-length": str(length)}
    reading = read_body(sender, headers, buffer, limit=limit, timeout_s=timeout_s)
    return asyncio.run(asyncio.wait_for(reading, PATIENCE_S)), buffer


def test_a_body_in_chunks_is_put_together() -> None:
    assert read(Sender([b"ab", b"", b"cd"]))[0] == b"abcd"


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    assert read(Sender([b"x" * 50] * 2))[0] == b"x" * 100


@pytest.mark.parametrize("length", [None, 300])
def test_b034_a_body_over_the_limit_is_refused_and_never_held(length: int | None) -> None:
    buffer = Peak(Admission(max_requests=1, max_buffered_bytes=1000))
    headers = {} if length is None else {"content-length": str(length)}
    sender = Sender([b"x" * 10] * 30)
    with pytest.raises(BodyTooLarge) as caught:
        asyncio.run(read_body(sender, headers, buffer, limit=100, timeout_s=5.0))

    assert caught.value.limit == 100
    assert caught.value.value == 300
    assert buffer.peak <= 100
    assert len(buffer) == 0
    assert sender.num_given == 30  # read to its end, so that the client gets to see the answer


def test_a_body_far_over_the_limit_is_not_read_to_its_end() -> None:
    announced, endless = Sender([b"x"] * 10), Sender([b"x" * 100] * 1000)
    with pytest.raises(BodyTooLarge):
        read(announced, length=10_000)
    with pytest.raises(BodyTooLarge):
        read(endless)

    assert announced.num_given == 0
    assert endless.num_given < 10


@pytest.mark.parametrize("chunks", [[], [b"ab"]])
def test_b034_a_body_that_stops_coming_times_out(chunks: list[bytes]) -> None:
    with pytest.raises(BodyTimeout) as caught:
        read(Sender(chunks, then="silence"), length=100, timeout_s=0.02)

    assert caught.value.value == sum(map(len, chunks))


def test_a_client_that_leaves_while_it_sends_is_noticed() -> None:
    with pytest.raises(ClientGone):
        read(Sender([b"ab"], then="close"))


def test_bodies_of_all_requests_together_are_bounded() -> None:
    async def scenario() -> None:
        admission = Admission(max_requests=9, max_buffered_bytes=150)
        with admission.buffer() as first, admission.buffer() as second:
            await read_body(Sender([b"x" * 100]), {}, first, limit=100, timeout_s=5.0)
            with pytest.raises(Overloaded):
                await read_body(Sender([b"x" * 100]), {}, second, limit=100, timeout_s=5.0)
        assert admission.buffered_bytes == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("route", [SCORE, RERANK])
def test_every_scoring_route_answers_bad_bodies_alike(route: str) -> None:
    deep = ("[" * 998 + "]" * 998).join(['{"x":', ',"query":"q","documents":["a"]}'])
    json_type = {"content-type": "application/json"}
    with service(max_body_bytes=4096) as client:
        replies: list[tuple[httpx.Response, int, str]] = [
            (client.post(route, content=b"", headers=json_type), 400, "malformed_json"),
            (client.post(route, content=deep, headers=json_type), 400, "malformed_json"),
            (client.post(route, content=b'{"a":"\\ud800"}', headers=json_type), 400, "malformed_json"),
            (client.post(route, content=b"{}", headers={"content-type": "text/x"}), 415, "unsupported_media_type"),
            (client.post(route, content=b'{"a":"' + b"x" * 5000 + b'"}', headers=json_type), 413, "body_too_large"),
            (client.post(route, content=b"[]", headers=json_type), 422, "invalid_value"),
        ]  # fmt: skip
        again = client.post(SCORE, json=GOOD)

    for reply, status, code in replies:
        error = reply.json()["error"]
        assert reply.status_code == status
        assert error["code"] == code
        assert error["retryable"] is False
        assert error["request_id"] == reply.headers["x-request-id"]
        assert error["message"]
    assert replies[4][0].json()["error"]["limit"] == 4096
    assert again.status_code == 200
