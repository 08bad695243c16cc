"""Span tables as C reads them, and the check of them that is made there."""

from __future__ import annotations

import ctypes
import struct

from kernels.api import KernelInputError, SpanTable
from kernels.checks import SpanReach

_NUMBERS = struct.Struct("=4q")


def pack_spans(table: SpanTable) -> bytes:
    """What ``unpack_table`` of the C code reads.

    Args:
        table: All its columns are of one length.

    Raises:
        KernelInputError: arrays are not of the dtypes that the table names.
    """
    columns = (table.query_lo, table.query_hi, table.key_lo, table.key_tokens, table.key_position)
    numbers = (*columns, table.positions, table.block_ids)
    flags = (table.from_pool, table.causal)
    sizes = table.num_spans, table.num_queries, len(table.block_ids), table.block_size
    # in bytes, since to ask an array for its address takes longer than to copy it, of a few rows
    packed = b"".join([_NUMBERS.pack(*sizes), *[array.tobytes() for array in (*numbers, *flags)]])
    if len(packed) != _NUMBERS.size + 4 * (5 * sizes[0] + sizes[1] + sizes[2]) + 2 * sizes[0]:
        got = ", ".join(str(array.dtype) for array in (*numbers, *flags))
        raise KernelInputError(f"spans: int32 numbers and bool flags wanted, got {got}")
    return packed


class NativeSpanCheck:
    """Finds in one pass over a table that nothing is wrong with it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._check = library.check_spans
        self._check.argtypes, self._check.restype = [ctypes.c_void_p] * 3, ctypes.c_int

    def __call__(self, table: SpanTable) -> SpanReach | None:
        """What :func:`kernels.checks.check_spans` gives; None where that has to say what is wrong, if anything.

        Raises:
            KernelInputError: see :func:`pack_spans`.
        """
        columns = (
            table.query_hi, table.key_lo, table.key_tokens, table.key_position, table.from_pool, table.causal
        )  # fmt: skip
        if {*map(len, columns)} != {table.num_spans}:
            return None
        fresh_rows, slots = ctypes.c_int64(), ctypes.c_int64()
        if self._check(pack_spans(table), ctypes.byref(fresh_rows), ctypes.byref(slots)):
            return None
        return SpanReach(fresh_rows=fresh_rows.value, slots=slots.value)
