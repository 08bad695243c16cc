from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard

from scorer.errors import BodyTooLarge, MalformedBody, UnsupportedMedia
from scorer.http.body_encoding import Encoding, encoding_of, inflate
from tests.helpers.service import RERANK, SCORE, service

BODY = {"queries": ["q"], "documents": ["d"]}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize(
    ("sent", "encoding"),
    [(None, "identity"), ("identity", "identity"), ("", "identity"), ("gzip", "gzip"), (" GZip ", "gzip"),
     ("x-gzip", "gzip"), ("zstd", "zstd")],
)  # fmt: skip
def test_names_of_encodings(sent: str | None, encoding: str) -> None:
    assert encoding_of({} if sent is None else {"content-encoding": sent}) == encoding


@pytest.mark.parametrize("sent", ["br", "deflate", "gzip, zstd", "gzip;q=1", "nonsense"])
def test_an_encoding_that_is_not_taken_is_refused_with_those_that_are(sent: str) -> None:
    with pytest.raises(UnsupportedMedia) as caught:
        encoding_of({"content-encoding": sent})

    assert all(name in str(caught.value) for name in ("identity", "gzip", "zstd"))


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 100, 70_000])
def test_what_was_compressed_comes_back(encoding: Encoding, size: int) -> None:
    plain = bytes(place % 251 for place in range(size))

    assert inflate(COMPRESS[encoding](plain), encoding, limit=size) == plain


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_one_byte_over_the_limit_is_too_large(encoding: Encoding) -> None:
    with pytest.raises(BodyTooLarge) as caught:
        inflate(COMPRESS[encoding](b"x" * 101), encoding, limit=100)

    assert caught.value.limit == 100


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_inflated_no_further_than_the_limit(encoding: Encoding) -> None:
    bomb = COMPRESS[encoding](bytes(64 * 2**20))
    assert len(bomb) < 100_000

    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        inflate(bomb, encoding, limit=2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * 2**20


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = writer.compress(bytes(1000)) + writer.flush()

    with pytest.raises(MalformedBody):
        inflate(frame, "zstd", limit=10_000)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b""),
        ("gzip", b"{}"),
        ("gzip", zlib.compress(b"{}")),
        ("gzip", gzip.compress(b"{}")[:-1]),
        ("gzip", gzip.compress(b"{}") + b"more"),
        ("gzip", gzip.compress(b"{}") * 2),
        ("zstd", b"{}"),
        ("zstd", zstandard.compress(b"{}") + b"more"),
        ("zstd", gzip.compress(b"{}")),
    ],
    # gzip writes down the time, and processes that share the tests must agree on their names
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_compressed_as_announced_is_malformed(encoding: Encoding, body: bytes) -> None:
    with pytest.raises(MalformedBody) as caught:
        inflate(body, encoding, limit=1000)

    assert encoding in str(caught.value)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize(("path", "body"), [(SCORE, BODY), (RERANK, {"query": "q", "documents": ["d"]})])
def test_every_scoring_route_takes_compressed_bodies(encoding: str, path: str, body: dict[str, object]) -> None:
    plain = json.dumps(body).encode()
    headers = {"content-type": "application/json", "content-encoding": encoding}
    with service(max_body_bytes=1024) as client:
        wanted = client.post(path, json=body)
        reply = client.post(path, content=COMPRESS[encoding](plain), headers=headers)
        large = client.post(path, content=COMPRESS[encoding](plain + b" " * 2000), headers=headers)
        broken = client.post(path, content=plain, headers=headers)
        other = client.post(path, content=plain, headers=headers | {"content-encoding": "br"})

    assert reply.status_code == 200
    assert reply.json()["results"][0].get("score") == wanted.json()["results"][0].get("score")
    assert [each.status_code for each in (large, broken, other)] == [413, 400, 415]


def test_inflated_bodies_count_among_the_bytes_that_are_held() -> None:
    body = json.dumps(BODY).encode() + b" " * 900
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    with service(max_body_bytes=1024, max_buffered_bytes=1024) as client:
        for _ in range(3):  # what was counted is given back
            assert client.post(SCORE, content=gzip.compress(body), headers=headers).status_code == 200


@pytest.mark.parametrize(("num_documents", "encoding"), [(2, None), (400, "gzip")])
def test_large_answers_are_compressed_for_those_who_accept_it(num_documents: int, encoding: str | None) -> None:
    body = {"queries": ["q"], "documents": ["d"] * num_documents}
    with service() as client:
        accepting = client.post(SCORE, json=body, headers={"accept-encoding": "gzip"})
        plain = client.post(SCORE, json=body, headers={"accept-encoding": "identity"})

    assert accepting.headers.get("content-encoding") == encoding
    assert "content-encoding" not in plain.headers
    assert accepting.json()["results"][0]["score"] == plain.json()["results"][0]["score"]
