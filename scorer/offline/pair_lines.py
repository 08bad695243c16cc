"""Lines of a file to be scored: pairs of texts, or native batches. Checked before anything is scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from scorer.dialects.schema import ScoreRequest
from scorer.errors import Refusal
from scorer.http.json_body import StrictDecoder
from scorer.offline.result_file import line_hash


class InputError(Exception):
    """The file cannot be read or a line of it is wrong; the message names file and line."""


class PairLine(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One pair. ``id`` comes back with the result."""

    query: str
    document: str
    id: str | int | None = None


InputLine: TypeAlias = PairLine | ScoreRequest


@dataclass(frozen=True, slots=True)
class LineInfo:
    """What is remembered of a line: its number from 1, its hash, and how many pairs it asks for."""

    number: int
    sha256: str
    num_pairs: int


class _Kind(msgspec.Struct, frozen=True):
    """The keys that only a batch has; their values are checked later."""

    queries: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    documents: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_KIND: Final = msgspec.json.Decoder(_Kind)
_PAIR: Final = StrictDecoder(PairLine)
_BATCH: Final = StrictDecoder(ScoreRequest)


def scan_lines(path: Path) -> list[LineInfo]:
    """Check every line; blank ones are passed over.

    Raises:
        InputError: the file cannot be read, holds nothing, or a line is neither a pair nor a
            batch in the native form.
    """
    found = [LineInfo(number, line_hash(line), num_pairs(decoded)) for number, line, decoded in _lines(path)]
    if not found:
        raise InputError(f"{path} has no lines to score")
    return found


def read_lines(path: Path) -> Iterator[tuple[int, InputLine]]:
    """The lines with their numbers, one by one.

    Raises:
        InputError: as for ``scan_lines``.
    """
    for number, _, decoded in _lines(path):
        yield number, decoded


def num_pairs(line: InputLine) -> int:
    if isinstance(line, PairLine):
        return 1
    return len(line.queries) * len(line.documents) if line.pairs == "all" else len(line.pairs)


def _lines(path: Path) -> Iterator[tuple[int, bytes, InputLine]]:
    try:
        with path.open("rb") as file:
            for number, ended in enumerate(file, start=1):
                if line := ended.strip():
                    yield number, line, _decode(line, f"{path}:{number}")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _decode(line: bytes, where: str) -> InputLine:
    try:
        kind = _KIND.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{where}: not a JSON object: {error}") from error
    is_batch = kind.queries is not msgspec.UNSET or kind.documents is not msgspec.UNSET
    try:
        return _BATCH.decode(line) if is_batch else _PAIR.decode(line)
    except Refusal as error:
        form = "a batch" if is_batch else "a pair (query, document and perhaps an id)"
        raise InputError(f"{where}: read as {form}: {error}") from error
