"""The attention of ``attention.c`` as an operation on tensors."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.api import AttentionShape, SpanTable
from kernels.native.attention_work import AttentionCut, AttentionWork

_LOG = logging.getLogger(__name__)

# head sizes are made of whole vectors
LANES = 16
# results are rounded to bfloat16 once, weights of keys too
_TOLERANCE = 2.0**-6

_POINTERS = (
    "query", "key", "value", "key_pool", "value_pool", "out",
    "units", "items", "pieces", "joins", "positions", "block_ids",
)  # fmt: skip
_SIZES = (
    "num_units", "num_joins", "num_shares", "unit_rows", "query_stride", "key_stride", "value_stride", "pool_stride",
    "kv_heads", "group", "head_dim", "block_size", "window",
)  # fmt: skip


class AttentionStruct(ctypes.Structure):
    """``attention`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


def attention_struct(
    addresses: Sequence[int | None], strides: Sequence[int], work: AttentionWork, shape: AttentionShape
) -> AttentionStruct:
    """What the C code is told.

    Args:
        addresses: Of query, key, value, key pool, value pool and the result.
        strides: Elements from row to row of query, key and value, and from head to head of a pool.
    """
    group = shape.num_heads // shape.num_kv_heads
    return AttentionStruct(
        *addresses, *work.addresses,
        len(work.units), len(work.joins), work.num_shares, work.unit_tokens * group, *strides,
        shape.num_kv_heads, group, shape.head_dim, work.block_size, shape.window or 0,
        shape.scale, shape.soft_cap or 0.0,
    )  # fmt: skip


class NativeAttention:
    """Attention in bfloat16 on processors with AVX512-BF16; AMX where there is that too.

    Raises:
        AttributeError: the library was built for a processor that has neither.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.cut = AttentionCut(library)
        self._attend = library.attend
        self._attend.argtypes, self._attend.restype = [ctypes.POINTER(AttentionStruct)], ctypes.c_int

    @staticmethod
    def takes(*tensors: Tensor) -> bool:
        """Whether dtype, head size and layout are what the C code reads: dense heads or slots."""
        head_dim = tensors[0].shape[-1]
        return head_dim % LANES == 0 and all(
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
        strides = query.stride(0), key.stride(0), value.stride(0), key_pool.stride(0)
        addresses = [tensor.data_ptr() for tensor in (query, key, value, key_pool, value_pool, out)]
        arguments = attention_struct(addresses, strides, work, shape)
        if self._attend(ctypes.byref(arguments)):
            raise MemoryError("a thread found no memory for the workspace of attention")
        return out


def load_native_attention(library: ctypes.CDLL) -> NativeAttention | None:
    """The attention of a library, or None where it has none or does not agree with PyTorch and with itself."""
    if not hasattr(library, "attend"):
        return None
    attention = NativeAttention(library)
    if not _agrees(attention):
        _LOG.warning("native attention is not as it should be on this processor and is not used")
        return None
    return attention


def _agrees(attention: NativeAttention) -> bool:
    """Compare on a prefix of 600 keys in scattered blocks, not at the start of one, and a row of 40 tokens behind.

    One thread that does it all must give the bits of many that have a stretch of keys each.
    """
    rng = torch.Generator().manual_seed(0)
    prefix, offset, tokens, block, group, kv_heads, dim = 600, 5, 40, 16, 3, 2, 80

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).bfloat16()

    query = random(tokens, kv_heads * group, dim)
    key, value = (random(tokens, kv_heads, dim) for _ in range(2))
    key_pool, value_pool = (random(kv_heads, 60 * block, dim) for _ in range(2))
    blocks = torch.randperm(60, generator=rng)[: -(-(offset + prefix) // block)]
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
    got, of_many = (
        attention(
            query, key, value, key_pool, value_pool,
            attention.cut(table, group=group, kv_heads=kv_heads, num_threads=num_threads), shape,
        )
        for num_threads in (1, 64)
    )  # fmt: skip

    slots = (blocks[:, None] * block + torch.arange(block)).flatten()[offset : offset + prefix]
    keys, values = (
        torch.cat([pool[:, slots], fresh.transpose(0, 1)], dim=1).float().repeat_interleave(group, dim=0)
        for pool, fresh in ((key_pool, key), (value_pool, value))
    )
    hidden = torch.arange(prefix + tokens) > torch.arange(prefix, prefix + tokens)[:, None]
    scores = torch.einsum("qhd,hkd->hqk", query.float(), keys) * shape.scale
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = torch.einsum("hqk,hkd->qhd", weights, values)
    return torch.equal(got, of_many) and torch.allclose(got.float(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
