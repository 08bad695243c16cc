"""The native dialect as lines of JSON: one pair a line in, one result a line out."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from scorer.dialects.schema import QueryItem, ScoreOptions, ScoreRequest, TextItem
from scorer.errors import InvalidValue, MalformedBody
from scorer.http.json_body import StrictDecoder

T = TypeVar("T")


class PairLine(Struct, forbid_unknown_fields=True, frozen=True):
    """One pair. The first line may hold the fields of a batch that are not texts instead."""

    query: str | QueryItem
    document: str | TextItem


_PAIR: Final = StrictDecoder(PairLine)
_OPTIONS: Final = StrictDecoder(ScoreOptions)
_PAIR_KEYS: Final = (b'"query"', b'"document"')


def decode_lines(body: bytes) -> ScoreRequest:
    """The batch that the lines spell; texts that occur in several of them are one query or document of it.

    Raises:
        MalformedBody, InvalidValue: a line is wrong; names it, counted from 1.
    """
    lines = [(number, line) for number, line in enumerate(body.splitlines(), start=1) if line.strip()]
    options = ScoreOptions()
    if lines and not any(key in lines[0][1] for key in _PAIR_KEYS):
        options = _decode(_OPTIONS, *lines.pop(0))
    if not lines:
        raise InvalidValue("there is no line with a pair", field="body", value=0, limit=1)
    queries: _Distinct[str | QueryItem] = _Distinct()
    documents: _Distinct[str | TextItem] = _Distinct()
    pairs = []
    for number, line in lines:
        pair = _decode(_PAIR, number, line)
        pairs.append((queries.place_of(pair.query), documents.place_of(pair.document)))
    return ScoreRequest(
        **{name: getattr(options, name) for name in options.__struct_fields__},
        queries=queries.items,
        documents=documents.items,
        pairs=pairs,
    )


class _Distinct(Generic[T]):
    """Items in the order in which they were first met."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._places: dict[bytes, int] = {}

    def place_of(self, item: T) -> int:
        """Index of the item, which is added if it is new."""
        key = msgspec.json.encode(item)
        place = self._places.setdefault(key, len(self.items))
        if place == len(self.items):
            self.items.append(item)
        return place


def _decode(decoder: StrictDecoder[T], number: int, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (MalformedBody, InvalidValue) as error:
        field = f"lines[{number - 1}]" + ("" if error.field in {None, "body"} else f".{error.field}")
        raise type(error)(f"line {number}: {error}", field=field, value=error.value, limit=error.limit) from None
