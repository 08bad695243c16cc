"""Lines of the files that evaluation sets are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

Line = TypeVar("Line")


class EvalSetError(Exception):
    """A set cannot be read; the message names the file and the line."""


def json_lines(path: Path, kind: type[Line]) -> Iterator[tuple[str, Line]]:
    """The lines of a file of JSON objects, each with ``file:line`` for messages.

    Raises:
        EvalSetError: the file cannot be read, or a line is not of this kind.
    """
    decoder = msgspec.json.Decoder(kind)
    for where, line in text_lines(path):
        try:
            yield where, decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EvalSetError(f"{where}: {error}") from error


def text_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Lines that are not blank, each with ``file:line`` for messages.

    Raises:
        EvalSetError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
        content.decode()
    except OSError as error:
        raise EvalSetError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise EvalSetError(f"{path}:{number}: the line is not UTF-8") from error
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line.rstrip(b"\r")
