"""The header of a GGUF file: its metadata and where each tensor lies.

Reads no tensor data and needs no torch, so that the text side and ``scorer plan`` can use it.
A header is mostly the strings of a vocabulary. They are cut out of one memory map in a plain
loop, because the reader of the ``gguf`` package takes seconds over them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, TypeAlias

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import CheckpointError

GgufValue: TypeAlias = str | int | float | bool | list[str] | list[int] | list[float] | list[bool]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 4

# struct codes of the scalar value types, by type number
_SCALARS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies.

    Args:
        shape: Outermost dimension first, as numpy and torch count.
        offset: First byte of the data, counted from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    encoding: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Metadata and tensor table of ``path``, every tensor proven to lie inside the file.

    Raises:
        CheckpointError: the file cannot be read, is no little-endian GGUF of version 2 or 3,
            is cut short, or holds a value or tensor encoding that is not known.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Cursor(path, view).header()
    except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
        raise CheckpointError(f"{path} cannot be read: {error}") from error


class _Cursor:
    """Walks the header once, from front to back."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self._path = path
        self._view = view
        self._at = 0

    def header(self) -> GgufHeader:
        if self._take(4) != _MAGIC:
            raise CheckpointError(f"{self._path} is not a GGUF file: it does not start with {_MAGIC!r}")
        version = self._number("I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self._path} is GGUF version {version}; versions {_VERSIONS} in little-endian order are read"
            )
        num_tensors, num_values = self._number("Q"), self._number("Q")
        metadata = self._metadata(num_values)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(f"{self._path}: general.alignment is {alignment!r}; a power of two is needed")
        records = [self._tensor_record() for _ in range(num_tensors)]
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for record in records:
            tensor = self._placed(*record, data_start=data_start)
            if tensor.name in tensors:
                raise CheckpointError(f"{self._path} lists tensor {tensor.name} twice")
            tensors[tensor.name] = tensor
        return GgufHeader(path=self._path, metadata=metadata, tensors=tensors)

    def _metadata(self, count: int) -> dict[str, GgufValue]:
        values: dict[str, GgufValue] = {}
        for _ in range(count):
            key = self._string()
            if key in values:
                raise CheckpointError(f"{self._path} gives the metadata field {key} twice")
            values[key] = self._value(key)
        return values

    def _value(self, key: str) -> GgufValue:
        kind = self._number("I")
        if kind == _STRING:
            return self._string()
        if code := _SCALARS.get(kind):
            return self._scalar(code)
        if kind == _ARRAY:
            element, count = self._number("I"), self._number("Q")
            if element == _STRING:
                return self._strings(count)
            if code := _SCALARS.get(element):
                return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(code))))
            kind = element
        raise CheckpointError(f"{self._path}: metadata field {key} has value type {kind}, which is not known")

    def _tensor_record(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise CheckpointError(
                f"{self._path}: tensor {name} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible"
            )
        innermost_first = [self._number("Q") for _ in range(num_dimensions)]
        return name, tuple(reversed(innermost_first)), self._number("I"), self._number("Q")

    def _placed(
        self, name: str, shape: tuple[int, ...], encoding_number: int, offset: int, *, data_start: int
    ) -> GgufTensor:
        try:
            encoding = GGMLQuantizationType(encoding_number)
        except ValueError as error:
            raise CheckpointError(f"{self._path}: tensor {name} has encoding {encoding_number}, not known") from error
        block_elements, block_bytes = GGML_QUANT_SIZES[encoding]
        if shape[-1] % block_elements:
            raise CheckpointError(
                f"{self._path}: rows of tensor {name} hold {shape[-1]} elements; "
                f"{encoding.name} needs a multiple of {block_elements}"
            )
        num_bytes = prod(shape) // block_elements * block_bytes
        start = data_start + offset
        if start + num_bytes > len(self._view):
            raise CheckpointError(
                f"{self._path} is cut short: tensor {name} ends at byte {start + num_bytes:,}, "
                f"the file has {len(self._view):,}"
            )
        return GgufTensor(name=name, shape=shape, encoding=encoding, offset=start, num_bytes=num_bytes)

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        length = struct.Struct("<Q")
        view, at = self._view, self._at
        strings: list[str] = []
        try:
            for _ in range(count):
                start = at + length.size
                at = start + length.unpack_from(view, at)[0]
                if at > len(view):
                    raise self._cut_short(at)
                strings.append(view[start:at].decode())
        except struct.error:
            raise self._cut_short(at + length.size) from None
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self._path}: the name or text before byte {at:,} is not UTF-8") from error
        self._at = at
        return strings

    def _number(self, code: str) -> int:
        return int(self._scalar(code))

    def _scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack("<" + code, self._take(struct.calcsize(code)))[0]
        return value

    def _take(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > len(self._view):
            raise self._cut_short(end)
        raw = self._view[self._at : end]
        self._at = end
        return raw

    def _cut_short(self, needed: int) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is cut short: its header needs {needed:,} bytes at least, the file has {len(self._view):,}"
        )
