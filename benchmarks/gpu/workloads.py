"""The steps that are timed: shapes of reranking, question answering and classification.

Lengths are drawn once from a fixed seed, so every method and every run sees the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.api import AttentionShape, SpanTable

BLOCK_SIZE = 16
_SEED = 20

HEADS = {"0.6B": (16, 8, 128), "4B": (32, 8, 128), "135M": (9, 3, 64)}
"""Query heads, KV heads and head size of the models that are stood for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One step: a cached prefix (0: none) and the new rows below it."""

    name: str
    model: str
    prefix_tokens: int
    row_tokens: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return sum(self.row_tokens)

    @property
    def shape(self) -> AttentionShape:
        num_heads, num_kv_heads, head_dim = HEADS[self.model]
        return AttentionShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=head_dim**-0.5)

    @property
    def useful_flop(self) -> int:
        """Multiply-adds (two each) of Q·K and P·V over the pairs that a query may see."""
        pairs = self.prefix_tokens * self.num_tokens + sum(n * (n + 1) // 2 for n in self.row_tokens)
        return 4 * self.shape.num_heads * self.shape.head_dim * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The tensors of a workload on a device; the prefix stands in permuted blocks of the pool."""

    workload: Workload
    block_ids: npt.NDArray[np.int32]
    query: Tensor
    key: Tensor
    value: Tensor
    key_pool: Tensor
    value_pool: Tensor

    def table(self) -> SpanTable:
        return self.table_of(np.arange(self.workload.num_tokens))

    def table_of(self, tokens: npt.NDArray[np.int64]) -> SpanTable:
        """The span table with the query rows ``tokens`` (ascending) alone."""
        lengths = np.array(self.workload.row_tokens, np.int64)
        start = np.cumsum(lengths) - lengths
        lo = np.searchsorted(tokens, start)
        hi = np.searchsorted(tokens, start + lengths)
        read = lo < hi
        prefix = self.workload.prefix_tokens
        shared = 1 if prefix else 0
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        num_own = int(read.sum())

        def column(first: int, rest: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
            return np.concatenate([np.full(shared, first), rest]).astype(np.int32)

        return SpanTable(
            positions=(prefix + tokens - start[row_of[tokens]]).astype(np.int32),
            query_lo=column(0, lo[read]),
            query_hi=column(len(tokens), hi[read]),
            key_lo=column(0, start[read]),
            key_tokens=column(prefix, lengths[read]),
            key_position=column(0, np.full(num_own, prefix)),
            from_pool=np.arange(num_own + shared) < shared,
            causal=np.arange(num_own + shared) >= shared,
            block_ids=self.block_ids,
            block_size=BLOCK_SIZE,
        )

    def prefix(self, pool: Tensor) -> Tensor:
        """Keys or values of the prefix in order: ``[H_kv, P, D]``, gathered from its blocks."""
        slots = (self.block_ids[:, None].astype(np.int64) * BLOCK_SIZE + np.arange(BLOCK_SIZE)).ravel()
        return pool[:, torch.from_numpy(slots[: self.workload.prefix_tokens]).to(pool.device)]


def workloads() -> list[Workload]:
    """Every workload, small before large within a shape."""
    found = []
    for model in HEADS:
        rerank = [_draw(f"rerank P=200 N={n}", model, 200, n, 20, 300) for n in (10, 100, 1000)]
        documents = [
            _draw(f"questions P={prefix} N={n}", model, prefix, n, 20, 60)
            for prefix in (704, 2200, 4200, 8200)
            for n in (10, 100)
        ]
        found += [
            *rerank,
            *documents,
            _draw("labels P=1200 N=1000", model, 1200, 1000, 10, 40),
            Workload(name="nothing shared S=300 N=100", model=model, prefix_tokens=0, row_tokens=(300,) * 100),
            Workload(name="rows of one token N=1000", model=model, prefix_tokens=200, row_tokens=(1,) * 1000),
            Workload(name="one long row", model=model, prefix_tokens=200, row_tokens=(20,) * 50 + (8192,) + (20,) * 50),
        ]
    return found


def _draw(name: str, model: str, prefix_tokens: int, num_rows: int, shortest: int, longest: int) -> Workload:
    rng = np.random.default_rng(_SEED)
    lengths = rng.integers(shortest, longest + 1, num_rows)
    return Workload(
        name=name, model=model, prefix_tokens=prefix_tokens, row_tokens=tuple(int(length) for length in lengths)
    )


def make_step(workload: Workload, device: torch.device, dtype: torch.dtype) -> Step:
    """Random tensors (zeros would run faster than real ones) and a permuted pool."""
    shape = workload.shape
    rng = torch.Generator(device).manual_seed(_SEED)
    num_blocks = -(-workload.prefix_tokens // BLOCK_SIZE)
    pool_blocks = num_blocks + 8

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=rng, device=device, dtype=torch.float32).to(dtype)

    return Step(
        workload=workload,
        block_ids=np.random.default_rng(_SEED).permutation(pool_blocks)[:num_blocks].astype(np.int32),
        query=normal(workload.num_tokens, shape.num_heads, shape.head_dim),
        key=normal(workload.num_tokens, shape.num_kv_heads, shape.head_dim),
        value=normal(workload.num_tokens, shape.num_kv_heads, shape.head_dim),
        key_pool=normal(shape.num_kv_heads, pool_blocks * BLOCK_SIZE, shape.head_dim),
        value_pool=normal(shape.num_kv_heads, pool_blocks * BLOCK_SIZE, shape.head_dim),
    )
