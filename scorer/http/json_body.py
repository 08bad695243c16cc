"""From a request to a struct, strictly: content type, size, time, JSON, types.

The JSON decoder is fast and typed but lets a few things through or words them badly; what is
added here: no duplicate keys, no deep nesting that ends in a recursion error, and errors that
name the path, the size of what was got, and the limit. Text of the client is never repeated.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from litestar.types import Receive

from scorer.errors import BodyTimeout, BodyTooLarge, ClientGone, InvalidValue, MalformedBody, UnsupportedMedia
from scorer.http.admission import BodyBuffer
from scorer.http.wire_path import allowed_values, look_up

T = TypeVar("T")

NDJSON = "application/x-ndjson"
_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.-]+\+json)", re.IGNORECASE)
_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>[^`]*)`$")
_KEY_END = re.compile(rb'"\s*:')
_BOUND = re.compile(r"(?:<=|>=|<|>|of length) (?P<bound>-?[0-9.]+)$")
_LONGEST_NAME = 64
_LARGEST_INT = 2**63 - 1
_DISCARD_FACTOR = 4
"""How many times the limit is read and thrown away, so that a client that sends a body before
it listens gets to see the refusal."""


def is_ndjson(headers: Mapping[str, str]) -> bool:
    """Whether the body is announced as lines of JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == NDJSON


def require_json(headers: Mapping[str, str], *, lines: bool = False) -> None:
    """Check that the body is announced as JSON in UTF-8.

    Args:
        lines: Lines of JSON will do, too.

    Raises:
        UnsupportedMedia: it is not.
    """
    media_type, *parameters = headers.get("content-type", "").split(";")
    if not (_JSON_TYPE.fullmatch(media_type.strip()) or (lines and is_ndjson(headers))):
        accepted = f"application/json or {NDJSON}" if lines else "application/json"
        raise UnsupportedMedia(f"the content type must be {accepted}", field="content-type", limit=accepted)
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('"').lower() not in {"utf-8", "utf8"}:
            raise UnsupportedMedia("JSON must be sent in UTF-8", field="content-type")


async def read_body(
    receive: Receive, headers: Mapping[str, str], buffer: BodyBuffer, *, limit: int, timeout_s: float
) -> bytes:
    """The whole body, counted as it arrives; never more than ``limit`` plus one chunk is held.

    Raises:
        BodyTooLarge: more than ``limit`` bytes are announced or sent.
        BodyTimeout: the body is not complete after ``timeout_s``.
        ClientGone: the client closed the connection half-way.
        Overloaded: too many bodies are held at the moment.
    """
    declared = headers.get("content-length", "")
    num_declared = int(declared) if declared.isascii() and declared.isdigit() else None
    if num_declared is not None and num_declared > limit * _DISCARD_FACTOR:
        raise _too_large(num_declared, limit)  # so much that it is not even read
    num_seen = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client closed the connection while it sent the body")
                assert message["type"] == "http.request"
                chunk = message["body"]
                num_seen += len(chunk)
                if num_seen <= limit:
                    buffer.append(chunk)
                elif num_seen > limit * _DISCARD_FACTOR:
                    break
                else:
                    buffer.release()
                if not message["more_body"]:
                    break
    except TimeoutError:
        raise BodyTimeout(
            f"{num_seen} bytes of the body arrived in {timeout_s:g} s",
            value=num_seen,
            limit=f"{timeout_s:g} s",
        ) from None
    if num_seen > limit:
        raise _too_large(num_declared or num_seen, limit)
    return buffer.content()


def _too_large(num_bytes: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has at least {num_bytes} bytes, the limit is {limit}", field="body", value=num_bytes, limit=limit
    )


class StrictDecoder(Generic[T]):
    """Decodes bodies of one struct type. Safe to use from any thread."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> T:
        """The struct that ``body`` spells.

        Raises:
            MalformedBody: not JSON, not UTF-8, half a surrogate pair, NaN, a duplicate key, or
                nested too deeply.
            InvalidValue: JSON, but not of this type.
        """
        if not body.strip():
            raise MalformedBody("the body is empty, a JSON object is wanted", field="body")
        try:
            value = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            # Types are checked while reading, so what follows the wrong value is not read yet.
            tree = _decode_plain(body)
            _refuse_duplicate_keys(body)
            self._refuse(str(error), tree)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(error) from None
        if _may_repeat_keys(body):
            _refuse_duplicate_keys(body)
        elif not body.isascii():
            _refuse_other_encodings(body)
        return value

    def _refuse(self, message: str, tree: Any) -> NoReturn:
        at = _PATH.search(message)
        path = at["path"].lstrip(".") if at else ""
        message = message[: at.start()] if at else message
        if unknown := _UNKNOWN_FIELD.match(message):
            name = unknown["name"][:_LONGEST_NAME]
            field = f"{path}.{name}" if path else name
            raise InvalidValue(f"`{field}` is not a field of this request", field=field)
        if missing := _MISSING_FIELD.match(message):
            field = f"{path}.{missing['name']}" if path else missing["name"]
            raise InvalidValue(f"`{field}` is missing", field=field)
        got = look_up(tree, path)
        value = _size_of(got)
        if message.startswith(("Invalid enum value", "Invalid value")):
            allowed = ", ".join(allowed_values(self._kind, path))
            raise InvalidValue(f"`{path}` must be one of: {allowed}", field=path, value=value, limit=allowed)
        bound = _BOUND.search(message)
        raise InvalidValue(
            f"`{path or 'body'}`: {message[0].lower()}{message[1:]}",
            field=path or "body",
            value=value,
            limit=_number(bound["bound"]) if bound else None,
        )


def _decode_plain(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:  # a number that no Python type holds
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from None


def _may_repeat_keys(body: bytes) -> bool:
    """False only if no object of ``body``, which is valid JSON, has a key twice.

    Bodies of a few fields and many long texts spell each key once, which is seen without reading
    the texts. A text may hold what looks like the end of a key; then there is one name more,
    which can only make this true.
    """
    names: set[bytes] = set()
    for match in _KEY_END.finditer(body):
        end = match.start()
        name = body[body.rfind(b'"', 0, end) + 1 : end]
        if name in names or b"\\" in name:  # with escapes, one key can be spelled in several ways
            return True
        names.add(name)
    return False


def _refuse_other_encodings(body: bytes) -> None:
    """Check what the typed decoder does not in fields that it skips.

    Raises:
        MalformedBody: not UTF-8.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(error) from None


def _refuse_duplicate_keys(body: bytes) -> None:
    """Read the body a second time, for what the typed decoder does not see.

    Raises:
        MalformedBody: a key occurs twice in an object, or a field that is skipped is not UTF-8
            or too deep.
    """
    try:
        json.loads(body.decode(), object_pairs_hook=_unique, parse_int=str, parse_float=str)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _malformed(error) from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        name = next(name for index, name in enumerate(names) if name in names[:index])
        raise MalformedBody(f"the key `{name[:_LONGEST_NAME]}` occurs twice in one object", field=name[:_LONGEST_NAME])


def _malformed(error: Exception) -> MalformedBody:
    """Our own words: the decoder's are at times misleading and may quote the body."""
    if isinstance(error, RecursionError):
        return MalformedBody("the JSON is nested too deeply", field="body")
    at = re.search(r"\(byte (\d+)\)", str(error))
    where = f" (at byte {at[1]})" if at else ""
    return MalformedBody(f"the body is not valid JSON in UTF-8{where}", field="body")


def _size_of(value: Any) -> float | str | None:
    """A number as it is, of texts and lists the length, of anything else the kind."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if abs(value) > _LARGEST_INT:  # beyond what JSON readers agree on
            digits = str(value)
            return digits if len(digits) <= 40 else f"a number of {len(digits)} digits"
        case int() | float():
            return value
        case str() | list():
            return len(value)
        case dict():
            return "object"
        case _:
            return None


def _number(text: str) -> float | int:
    return float(text) if "." in text else int(text)
