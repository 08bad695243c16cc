"""The attention of ``attention.c`` as an operation on tensors, and how a step is cut for it."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.api import AttentionShape, IntArray, SpanTable

_LOG = logging.getLogger(__name__)

# Keys are repacked once for each unit that sees them, so many rows a unit are good; and every
# thread should get a few units.
_MOST_ROWS = 512
_LEAST_ROWS = 96
_UNITS_PER_THREAD = 4
# head sizes are made of whole vectors
_LANES = 16
# results are rounded to bfloat16 once, weights of keys too
_TOLERANCE = 2.0**-6

_POINTERS = ("query", "key", "value", "key_pool", "value_pool", "out", "units", "items", "positions", "block_ids")
_SIZES = (
    "num_units", "query_stride", "key_stride", "value_stride", "pool_stride", "kv_heads", "group", "head_dim",
    "block_size", "window",
)  # fmt: skip


class _Arguments(ctypes.Structure):
    """``attention`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """A step cut into units: runs of query tokens, each with the parts of spans that they see.

    ``units`` [U, 4]: query_lo, query_hi, item_lo, item_hi; most work first.
    ``items`` [I, 7]: the columns of :class:`kernels.api.SpanTable` with queries cut to the unit:
    query_lo, query_hi, key_lo, key_tokens, key_position, from_pool, causal.
    """

    units: IntArray
    items: IntArray
    positions: IntArray
    block_ids: IntArray
    block_size: int
    unit_tokens: int


def cut(table: SpanTable, *, group: int, kv_heads: int, num_threads: int) -> AttentionWork:
    """Units of a step for ``group`` query heads to each of ``kv_heads`` KV heads."""
    fair = table.num_queries * group * kv_heads // (_UNITS_PER_THREAD * num_threads)
    unit_tokens = max(min(max(fair, _LEAST_ROWS), _MOST_ROWS) // group, 1)
    spans = np.flatnonzero(table.query_lo < table.query_hi)
    first = table.query_lo[spans] // unit_tokens
    count = (table.query_hi[spans] - 1) // unit_tokens - first + 1
    span = np.repeat(spans, count)
    unit = np.arange(len(span)) - np.repeat(np.cumsum(count) - count - first, count)
    order = np.argsort(unit, kind="stable")
    span, unit = span[order], unit[order]
    items = np.column_stack(
        [
            np.maximum(table.query_lo[span], unit * unit_tokens),
            np.minimum(table.query_hi[span], (unit + 1) * unit_tokens),
            table.key_lo[span],
            table.key_tokens[span],
            table.key_position[span],
            table.from_pool[span],
            table.causal[span],
        ]
    ).astype(np.int32)
    numbers = np.arange(-(-table.num_queries // unit_tokens))
    bounds = np.searchsorted(unit, np.append(numbers, len(numbers)))
    low = numbers * unit_tokens
    units = np.column_stack([low, np.minimum(low + unit_tokens, table.num_queries), bounds[:-1], bounds[1:]])
    work = np.bincount(unit, weights=(items[:, 1] - items[:, 0]) * items[:, 3], minlength=len(numbers))
    return AttentionWork(
        units=units[np.argsort(-work, kind="stable")].astype(np.int32),
        items=items,
        positions=np.ascontiguousarray(table.positions),
        block_ids=np.ascontiguousarray(table.block_ids),
        block_size=table.block_size,
        unit_tokens=unit_tokens,
    )


class NativeAttention:
    """Attention in bfloat16 on processors with AVX512-BF16; AMX where there is that too.

    Raises:
        AttributeError: the library was built for a processor that has neither.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend = library.attend
        self._attend.argtypes, self._attend.restype = [ctypes.POINTER(_Arguments), ctypes.c_int64], ctypes.c_int

    @staticmethod
    def takes(*tensors: Tensor) -> bool:
        """Whether dtype, head size and layout are what the C code reads: dense heads or slots."""
        head_dim = tensors[0].shape[-1]
        return head_dim % _LANES == 0 and all(
            tensor.dtype == torch.bfloat16 and tensor.stride()[1:] == (head_dim, 1) for tensor in tensors
        )

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_pool: Tensor,
        value_pool: Tensor,
        work: AttentionWork,
        shape: AttentionShape,
    ) -> Tensor:
        """See :meth:`kernels.api.KernelSet.attend`; :meth:`takes` said yes to the tensors.

        Raises:
            MemoryError: a thread found no memory to work in.
        """
        out = torch.empty(query.shape, dtype=query.dtype)
        group = shape.num_heads // shape.num_kv_heads
        arguments = _Arguments(
            *(tensor.data_ptr() for tensor in (query, key, value, key_pool, value_pool, out)),
            *(array.ctypes.data for array in (work.units, work.items, work.positions, work.block_ids)),
            len(work.units), query.stride(0), key.stride(0), value.stride(0), key_pool.stride(0),
            shape.num_kv_heads, group, shape.head_dim, work.block_size, shape.window or 0,
            shape.scale, shape.soft_cap or 0.0,
        )  # fmt: skip
        if self._attend(ctypes.byref(arguments), work.unit_tokens * group):
            raise MemoryError("a thread found no memory for the workspace of attention")
        return out


def load_native_attention(library: ctypes.CDLL) -> NativeAttention | None:
    """The attention of a library, or None where it has none or does not agree with PyTorch."""
    if not hasattr(library, "attend"):
        return None
    attention = NativeAttention(library)
    if not _agrees(attention):
        _LOG.warning("native attention disagrees with PyTorch on this processor and is not used")
        return None
    return attention


def _agrees(attention: NativeAttention) -> bool:
    """Compare on a prefix of 300 keys in scattered blocks, not at the start of one, and a row of 40 tokens behind."""
    rng = torch.Generator().manual_seed(0)
    prefix, offset, tokens, block, group, kv_heads, dim = 300, 5, 40, 16, 3, 2, 80

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).bfloat16()

    query = random(tokens, kv_heads * group, dim)
    key, value = (random(tokens, kv_heads, dim) for _ in range(2))
    key_pool, value_pool = (random(kv_heads, 40 * block, dim) for _ in range(2))
    blocks = torch.randperm(40, generator=rng)[: -(-(offset + prefix) // block)]
    table = SpanTable(
        positions=np.arange(prefix, prefix + tokens, dtype=np.int32),
        query_lo=np.array([0, 0], dtype=np.int32),
        query_hi=np.array([tokens, tokens], dtype=np.int32),
        key_lo=np.array([offset, 0], dtype=np.int32),
        key_tokens=np.array([prefix, tokens], dtype=np.int32),
        key_position=np.array([0, prefix], dtype=np.int32),
        from_pool=np.array([True, False]),
        causal=np.array([False, True]),
        block_ids=blocks.numpy().astype(np.int32),
        block_size=block,
    )
    shape = AttentionShape(num_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5)
    work = cut(table, group=group, kv_heads=kv_heads, num_threads=1)
    got = attention(query, key, value, key_pool, value_pool, work, shape)

    slots = (blocks[:, None] * block + torch.arange(block)).flatten()[offset : offset + prefix]
    keys, values = (
        torch.cat([pool[:, slots], fresh.transpose(0, 1)], dim=1).float().repeat_interleave(group, dim=0)
        for pool, fresh in ((key_pool, key), (value_pool, value))
    )
    hidden = torch.arange(prefix + tokens) > torch.arange(prefix, prefix + tokens)[:, None]
    scores = torch.einsum("qhd,hkd->hqk", query.float(), keys) * shape.scale
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = torch.einsum("hqk,hkd->qhd", weights, values)
    return torch.allclose(got.float(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
