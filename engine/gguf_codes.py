"""The codes of block encodings of GGUF files in which 32 weights share a scale and an offset.

The layouts are those of ggml (``ggml-common.h``). An encoding that is not here has smaller
blocks, or levels that are not evenly spaced; its weights are read as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """Weights that are ``scale * code + offset``: ``codes`` [N, 32] int8, ``scales`` and ``offsets`` [N] float32."""

    codes: npt.NDArray[np.int8]
    scales: Floats
    offsets: Floats


def code_bits(encoding: GGMLQuantizationType) -> int | None:
    """Bits that hold a code of ``encoding``, 4 or 8; None: it has no codes of this kind."""
    return _ENCODINGS[encoding][0] if encoding in _ENCODINGS else None


def read_codes(raw: Bytes, encoding: GGMLQuantizationType) -> Codes:
    """The codes of whole blocks, of an encoding that has :func:`code_bits`."""
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[encoding][1])
    return _ENCODINGS[encoding][1](blocks)


def _halves(blocks: Bytes, start: int) -> Floats:
    """The 16-bit float at byte ``start`` of every block."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)[:, 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low halves of the bytes of every row, then high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """What 32 bits a block, lowest first, add to codes of 4 bits."""
    return np.unpackbits(packed, axis=-1, bitorder="little") * np.uint8(16)


def _codes(codes: Bytes, scales: Floats, offsets: Floats) -> Codes:
    return Codes(codes.view(np.int8), scales, offsets)


def _q4_0(blocks: Bytes) -> Codes:
    scales = _halves(blocks, 0)
    return _codes(_nibbles(blocks[:, 2:]), scales, -8 * scales)


def _q4_1(blocks: Bytes) -> Codes:
    return _codes(_nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Bytes) -> Codes:
    scales = _halves(blocks, 0)
    return _codes(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scales, -16 * scales)


def _q5_1(blocks: Bytes) -> Codes:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _codes(codes, _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Bytes) -> Codes:
    scales = _halves(blocks, 0)
    return _codes(np.ascontiguousarray(blocks[:, 2:]), scales, np.zeros_like(scales))


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and offsets of the eight parts of blocks of 256: two floats times whole numbers of 6 bits."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    offsets = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    return (_halves(blocks, 0)[:, None] * scales).ravel(), (-_halves(blocks, 2)[:, None] * offsets).ravel()


def _k_codes(packed: Bytes) -> Bytes:
    """Codes of 4 bits [8 N, 32]: of two parts that follow each other, one is the low halves of 32 bytes."""
    return _nibbles(packed.reshape(-1, 32)).reshape(-1, 32)


def _q4_k(blocks: Bytes) -> Codes:
    return _codes(_k_codes(blocks[:, 16:]), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Codes:
    # bit p of byte i is of number i of part p
    fifth = np.unpackbits(blocks[:, 16:48, None], axis=-1, bitorder="little").swapaxes(1, 2)
    return _codes(_k_codes(blocks[:, 48:]) | (fifth.reshape(-1, 32) * np.uint8(16)), *_k_scales(blocks))


_ENCODINGS: Final[Mapping[GGMLQuantizationType, tuple[int, Callable[[Bytes], Codes]]]] = {
    GGMLQuantizationType.Q4_0: (4, _q4_0),
    GGMLQuantizationType.Q4_1: (4, _q4_1),
    GGMLQuantizationType.Q4_K: (4, _q4_k),
    GGMLQuantizationType.Q5_0: (8, _q5_0),
    GGMLQuantizationType.Q5_1: (8, _q5_1),
    GGMLQuantizationType.Q5_K: (8, _q5_k),
    GGMLQuantizationType.Q8_0: (8, _q8_0),
}
