"""How a step is cut for the attention of ``attention.c``."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from kernels.api import IntArray, KernelInputError, SpanTable
from kernels.native.spans import pack_spans

# Keys are repacked once for each unit that sees them, so many rows a unit are good; and every
# thread should get a few units.
_MOST_ROWS = 512
_LEAST_ROWS = 96
_UNITS_PER_THREAD = 4
# bytes that are tried at first, and for each byte that describes a step; enough for most
_ROOM = 2048
_ROOM_PER_BYTE = 4
_NO_MEMORY = -2  # as spans.h has it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionWork:
    """A step cut into units: runs of query tokens under one KV head, each with the runs of keys that they see.

    Sums over keys are taken in tiles of 32 and in stretches of 512 that begin with empty sums, both from multiples of
    their length on.

    ``units`` [U, 6]: head, query_lo, query_hi, item_lo, item_hi, share; most work first. A unit without a share (-1)
    gives results; the others hold the items of one stretch of keys and give a share of them.
    ``joins`` [J, 5]: head, query_lo, query_hi, share_lo, share_hi: results from the shares of these queries, in order.
    ``items`` [I, 7]: query_lo, query_hi, position, tokens, causal, piece, skip. Queries see ``tokens`` keys from
    ``position``, the first of a tile, on, none of another stretch. Those of a unit are in order of position.
    ``pieces`` [P, 3]: key_lo, tokens, from_pool, as in :class:`kernels.api.SpanTable`. The keys of an item are in the
    pieces from ``piece`` on, laid end to end, after the first ``skip``.

    Args:
        addresses: Of units, items, pieces and joins, and of the positions and block ids of the step, in the order of
            the C code; they are all in the memory that the arrays are views of.
    """

    units: IntArray
    joins: IntArray
    items: IntArray
    pieces: IntArray
    num_shares: int
    block_size: int
    unit_tokens: int
    addresses: tuple[int, ...]


class AttentionCut:
    """Cuts steps; the C code for it runs on every processor."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._cut = library.cut_attention
        self._cut.argtypes = [pointer, size, size, size, pointer, size, pointer]
        self._cut.restype = size

    def __call__(self, table: SpanTable, *, group: int, kv_heads: int, num_threads: int) -> AttentionWork:
        """Units of a step for ``group`` query heads to each of ``kv_heads`` KV heads.

        In a step with few rows, heads that cannot be dealt out evenly are given to several threads, a stretch of keys
        to each.

        Args:
            table: :func:`kernels.checks.check_spans` accepts it.

        Raises:
            KernelInputError: spans of the same rows overlap.
            MemoryError: there was none to work in.
        """
        fair = table.num_queries * group * kv_heads // (_UNITS_PER_THREAD * num_threads)
        unit_tokens = max(min(max(fair, _LEAST_ROWS), _MOST_ROWS) // group, 1)
        num_runs = -(-table.num_queries // unit_tokens)
        whole_heads = kv_heads
        if num_threads > 1 and num_runs * kv_heads < _UNITS_PER_THREAD * num_threads:
            # Shares go from cache to cache, and joins wait for all of them, so few heads are cut along their keys:
            # those left over when every thread has had as many heads of a run as any other. Heads of one run are equal
            # work; those of several are not counted together, since one may see a far longer prefix, and threads would
            # wait for whoever had it.
            whole_heads -= kv_heads % num_threads
        memory, (num_items, num_pieces, num_joins, num_units, num_shares) = self._written(
            pack_spans(table), unit_tokens, kv_heads=kv_heads, whole_heads=whole_heads
        )
        pieces = 7 * num_items
        joins = pieces + 3 * num_pieces
        units = joins + 5 * num_joins
        positions = units + 6 * num_units
        starts = units, 0, pieces, joins, positions, positions + table.num_queries
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory.data))
        return AttentionWork(
            units=memory[units:positions].reshape(-1, 6),
            joins=memory[joins:units].reshape(-1, 5),
            items=memory[:pieces].reshape(-1, 7),
            pieces=memory[pieces:joins].reshape(-1, 3),
            num_shares=num_shares,
            block_size=table.block_size,
            unit_tokens=unit_tokens,
            addresses=tuple([first + 4 * start for start in starts]),
        )

    def _written(
        self, packed: bytes, unit_tokens: int, *, kv_heads: int, whole_heads: int
    ) -> tuple[IntArray, list[int]]:
        """Items, pieces, joins, units, positions and block ids, one after the other.

        Also how many of the first four there are, and how many shares.
        """
        counts = (ctypes.c_int64 * 5)()
        memory, wanted = np.empty(0, np.int32), _ROOM + _ROOM_PER_BYTE * len(packed)
        while wanted > memory.nbytes:
            memory = np.empty(wanted // 4, np.int32)
            into = ctypes.byref(ctypes.c_char.from_buffer(memory.data))
            wanted = self._cut(packed, unit_tokens, kv_heads, whole_heads, into, memory.nbytes, counts)
        if wanted == _NO_MEMORY:
            raise MemoryError("no memory to cut a step for attention")
        if wanted < 0:
            raise KernelInputError("key_position: each position once for a query row wanted, got spans that overlap")
        return memory, counts[:]
