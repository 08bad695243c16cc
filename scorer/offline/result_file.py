"""An append-only JSON-lines file of results that survives being interrupted at any byte.

The first line says what made the file; every other line is the result of one line of the
input. A line is a result once its line end is on disk; what follows the last line end was
torn by an interruption and is dropped when the file is opened again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

FORMAT: Final = "scorer-results@1"


class ResultFileError(Exception):
    """The file cannot be used; the message names it, the line, and what to do."""


class Header(msgspec.Struct, frozen=True):
    """What made the file. Results of different headers are never mixed in one file.

    ``template_sha256`` tells two versions of a template file apart that both call themselves
    ``template``; ``calibration`` is ``name@version``.
    """

    format: str
    model: str
    revision: str
    template: str
    template_sha256: str
    dtype: str
    max_document_tokens: int | None
    calibration: str | None = None


class _Done(msgspec.Struct, frozen=True):
    """The part of a result line that resuming needs."""

    line: int
    input_sha256: str


_DONE: Final = msgspec.json.Decoder(_Done)


def line_hash(line: bytes) -> str:
    """16 hex digits that tell whether an input line is still the one that was scored."""
    return hashlib.sha256(line).hexdigest()[:16]


class ResultFile:
    """Opens ``path`` or makes it, locked against other processes until it is closed.

    ``done`` maps the number of every input line that has a result to its ``line_hash``.

    Raises:
        ResultFileError: another process has it open, it is no file of results, it was made
            with another header, or it cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ResultFileError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            self._lock()
            self.done: Mapping[int, str] = self._resume(header)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def append(self, results: Iterable[Mapping[str, object]]) -> None:
        """Write results and wait until they are on disk."""
        data = b"".join(msgspec.json.encode(result) + b"\n" for result in results)
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultFileError(f"{self._path} is being written by another process") from error

    def _resume(self, header: Header) -> dict[int, str]:
        """What is done; a torn last line is cut off, but only from a file that is ours."""
        done: dict[int, str] = {}
        with self._path.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                self._start(first, header)
                return done
            self._check_header(first, header)
            end = len(first)
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    break
                result = self._read_result(number, line)
                if result.line in done:
                    raise ResultFileError(f"{self._path}:{number}: input line {result.line} has a result already")
                done[result.line] = result.input_sha256
                end += len(line)
        os.ftruncate(self._fd, end)
        return done

    def _start(self, torn: bytes, header: Header) -> None:
        """Write the header to a file that is empty or holds the beginning of the same header."""
        if not msgspec.json.encode(header).startswith(torn):
            raise self._foreign()
        os.ftruncate(self._fd, 0)
        self.append([msgspec.to_builtins(header)])

    def _read_result(self, number: int, line: bytes) -> _Done:
        try:
            return _DONE.decode(line)
        except msgspec.DecodeError as error:
            raise ResultFileError(f"{self._path}:{number} is not a result of `scorer score`: {error}") from error

    def _foreign(self) -> ResultFileError:
        return ResultFileError(f"{self._path} was not written by `scorer score`; name another file")

    def _check_header(self, line: bytes, wanted: Header) -> None:
        try:
            found = msgspec.json.decode(line, type=Header)
        except msgspec.DecodeError as error:
            raise self._foreign() from error
        differing = [
            f"{name} {getattr(found, name)!r}, now {getattr(wanted, name)!r}"
            for name in Header.__struct_fields__
            if getattr(found, name) != getattr(wanted, name)
        ]
        if differing:
            raise ResultFileError(
                f"{self._path} was made with {'; '.join(differing)}: "
                "its scores cannot be continued with these; name another file"
            )
