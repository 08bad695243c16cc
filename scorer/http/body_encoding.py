"""Compressed request bodies, inflated without ever holding more than the limit."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

import zstandard

from scorer.errors import BodyTooLarge, MalformedBody, UnsupportedMedia

Encoding: TypeAlias = Literal["identity", "gzip", "zstd"]

_ACCEPTED: Final[tuple[str, ...]] = get_args(Encoding)
_GZIP_HEADER: Final = zlib.MAX_WBITS | 16
_LARGEST_WINDOW: Final = 8 * 2**20
"""What RFC 8878 asks decoders to support; a frame may ask for gigabytes."""


def encoding_of(headers: Mapping[str, str]) -> Encoding:
    """How the body is announced to be encoded.

    Raises:
        UnsupportedMedia: in a way that is not taken, or in several; names those that are.
    """
    name = headers.get("content-encoding", "identity").strip().lower()
    name = {"": "identity", "x-gzip": "gzip"}.get(name, name)
    if name not in _ACCEPTED:
        accepted = ", ".join(_ACCEPTED)
        raise UnsupportedMedia(
            f"the content encoding must be one of: {accepted}", field="content-encoding", limit=accepted
        )
    return cast(Encoding, name)


def inflate(body: bytes, encoding: Encoding, *, limit: int) -> bytes:
    """The body as it was before it was compressed.

    Raises:
        BodyTooLarge: it has more than ``limit`` bytes; no more than that is ever inflated.
        MalformedBody: it is not compressed as announced.
    """
    try:
        plain = {"identity": _identity, "gzip": _gunzip, "zstd": _unzstd}[encoding](body, limit + 1)
    except (zlib.error, zstandard.ZstdError):
        raise MalformedBody(f"the body is not valid {encoding}", field="body") from None
    if len(plain) > limit:
        raise BodyTooLarge(
            f"the body has more than {limit} bytes when it is inflated, the limit is {limit}", field="body", limit=limit
        )
    return plain


def _identity(body: bytes, _room: int) -> bytes:
    return body


def _gunzip(body: bytes, room: int) -> bytes:
    """At most ``room`` bytes of the one stream that ``body`` is."""
    stream = zlib.decompressobj(wbits=_GZIP_HEADER)
    plain = stream.decompress(body, room)
    if len(plain) < room and (not stream.eof or stream.unused_data):
        raise zlib.error("incomplete, or more than one stream")
    return plain


def _unzstd(body: bytes, room: int) -> bytes:
    """At most ``room`` bytes of the frames that ``body`` is; a last frame that is cut short is not noticed."""
    reader = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(body, read_across_frames=True)
    plain = bytearray()
    while len(plain) < room and (piece := reader.read(room - len(plain))):
        plain += piece
    return bytes(plain)
