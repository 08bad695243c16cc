"""Attention over the spans of a step on any CPU and in any dtype, out of PyTorch's operations.

Query heads are folded: the ``G = H / H_kv`` heads that read one KV head are rows of one
matrix, so a segment that many rows share is read once for all of them. Every span gives a
partial result with its log-sum-exp (natural log); partial results of a query are merged as
in Dao et al. 2022 (FlashAttention). Short causal spans are padded to a few lengths and run
as one batch.

Layout inside: queries and results are ``[H_kv, Q * G, D]``, query-major, float32 results.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.api import AttentionShape, PoolHalf, QuantisedPool, SpanTable
from kernels.cpu_quantised import dequantise
from kernels.native import NativeOps

# a causal span up to the last length is padded to the next of these and batched with its like
_HIDDEN = 1 << 30  # a position after every other
_PADDED_LENGTHS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class FullSpan:
    """Queries ``[low, high)`` see all keys of one segment."""

    low: int
    high: int
    from_pool: bool
    start: int  # first packed row or slot of the segment, when it is one run
    length: int
    slots: Tensor | None  # [length] int64, when the segment is in several runs
    key_position: int


@dataclass(frozen=True, slots=True)
class CausalBatch:
    """Causal spans of like length: their queries and keys, padded to common lengths.

    Padding comes last, so the causal rule alone hides padded keys from real queries.

    Args:
        read, write: ``[n * Sq]`` query rows; padding reads row 0 and writes to row ``Q``.
        keys: ``[n * Sk]`` packed rows; padding repeats the first.
        count: ``n``.
        square: The queries of every span are exactly its keys, as in all layers but the last.
        distance: ``[n, Sq, Sk]`` query position less key position; negative is not seen.
    """

    read: Tensor
    write: Tensor
    keys: Tensor
    count: int
    square: bool
    distance: Tensor
    masks: dict[tuple[int, int | None, torch.dtype], Tensor]

    def mask(self, group: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """``[n, 1, Sq * G, Sk]``, 0 or -inf; the same in every layer of one shape."""
        key = (group, window, dtype)
        if key not in self.masks:
            hidden = self.distance < 0
            if window is not None:
                hidden |= self.distance >= window
                hidden[hidden.all(-1)] = False  # padded queries may see anything
            self.masks[key] = _as_mask(hidden, dtype).repeat_interleave(group, dim=1).unsqueeze(1)
        return self.masks[key]


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    num_queries: int
    causal: tuple[CausalBatch, ...]
    full: tuple[FullSpan, ...]
    positions: Tensor


def make_plan(table: SpanTable) -> SegmentPlan:
    """Sort spans by what will run them, and look up the slots of scattered segments."""
    full = []
    by_length: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for span in range(table.num_spans):
        if table.causal[span]:
            tokens = int(table.key_tokens[span])
            padded = next((length for length in _PADDED_LENGTHS if length >= tokens), 0)
            by_length[(padded, 0) if padded else (tokens, span + 1)].append(span)
        else:
            full.append(_full_span(table, span))
    causal = tuple(_causal_batch(table, np.array(spans)) for spans in by_length.values())
    return SegmentPlan(table.num_queries, causal, tuple(full), torch.from_numpy(table.positions))


def _full_span(table: SpanTable, span: int) -> FullSpan:
    low, high = int(table.query_lo[span]), int(table.query_hi[span])
    start, length = int(table.key_lo[span]), int(table.key_tokens[span])
    slots = None
    if table.from_pool[span]:
        along = np.arange(start, start + length, dtype=np.int64)
        wanted = table.block_ids[along // table.block_size].astype(np.int64) * table.block_size
        wanted += along % table.block_size
        start = int(wanted[0])
        if int(wanted[-1]) - start != length - 1 or (np.diff(wanted) != 1).any():
            slots = torch.from_numpy(wanted)
    return FullSpan(low, high, bool(table.from_pool[span]), start, length, slots, int(table.key_position[span]))


def _causal_batch(table: SpanTable, spans: np.ndarray[tuple[int], np.dtype[np.int64]]) -> CausalBatch:
    query_lo, key_lo = table.query_lo[spans, None], table.key_lo[spans, None]
    num_queries = table.query_hi[spans, None] - query_lo
    num_keys = table.key_tokens[spans, None]
    place = np.arange(int(num_queries.max()))
    valid = place < num_queries
    read = np.where(valid, query_lo + place, 0)
    key_place = np.arange(int(num_keys.max()))
    key_valid = key_place < num_keys
    keys = np.where(key_valid, key_lo + key_place, key_lo)
    first = table.key_position[spans, None]
    own = np.where(valid, table.positions[read], first + num_keys - 1)  # padding sees the whole span
    distance = own[:, :, None] - np.where(key_valid, first + key_place, _HIDDEN)[:, None, :]
    return CausalBatch(
        read=torch.from_numpy(read.astype(np.int64).ravel()),
        write=torch.from_numpy(np.where(valid, read, table.num_queries).astype(np.int64).ravel()),
        keys=torch.from_numpy(keys.astype(np.int64).ravel()),
        count=len(spans),
        square=bool((num_queries == num_keys).all()),
        distance=torch.from_numpy(distance.astype(np.int32)),
        masks={},
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pool: PoolHalf,
    value_pool: PoolHalf,
    plan: SegmentPlan,
    shape: AttentionShape,
    native: NativeOps | None = None,
) -> Tensor:
    """See :meth:`kernels.api.KernelSet.attend`. ``native`` merges partial results where it can."""
    num_queries, num_heads, head_dim = query.shape
    kv_heads = shape.num_kv_heads
    group = num_heads // kv_heads
    folded = query.view(num_queries, kv_heads, group, head_dim).transpose(0, 1)  # [H_kv, Q, G, D]
    folded = folded.reshape(kv_heads, num_queries, group, head_dim)
    # one more query than there are takes what padding computes
    out = torch.empty(kv_heads, num_queries + 1, group, head_dim)
    lse = torch.empty(kv_heads, num_queries + 1, group)
    for batch in plan.causal:
        _run_causal(batch, query, key, value, out, lse, shape)
    fresh_key, fresh_value = key.transpose(0, 1), value.transpose(0, 1)  # [H_kv, T, D]
    for span in plan.full:
        keys = _segment(span, key_pool if span.from_pool else fresh_key, query.dtype)
        values = _segment(span, value_pool if span.from_pool else fresh_value, query.dtype)
        rows = slice(span.low, span.high)
        flat = folded[:, rows].reshape(1, kv_heads, -1, head_dim)
        mask = None if shape.window is None else _window_mask(plan, span, shape.window, group)
        part, part_lse = _softmax_attention(flat, keys[None], values[None], mask, shape)
        _merge(out[:, rows].flatten(1, 2), lse[:, rows].flatten(1), part[0], part_lse[0], native)
    return out[:, :num_queries].transpose(0, 1).reshape(num_queries, num_heads, head_dim).to(query.dtype)


def _segment(span: FullSpan, source: PoolHalf, dtype: torch.dtype) -> Tensor:
    """Keys or values of a span, ``[H_kv, length, D]``."""
    run = slice(span.start, span.start + span.length)
    if isinstance(source, QuantisedPool):
        return dequantise(source, run if span.slots is None else span.slots, dtype)
    return source[:, run] if span.slots is None else source.index_select(1, span.slots)


def _run_causal(
    batch: CausalBatch, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, shape: AttentionShape
) -> None:
    count, kv_heads = batch.count, shape.num_kv_heads
    group, head_dim = shape.num_heads // kv_heads, query.shape[2]
    queries = query.index_select(0, batch.read).view(count, -1, kv_heads, group, head_dim)
    keys = key.index_select(0, batch.keys).view(count, -1, kv_heads, head_dim).transpose(1, 2)
    values = value.index_select(0, batch.keys).view(count, -1, kv_heads, head_dim).transpose(1, 2)
    if batch.square and shape.window is None and shape.soft_cap is None:
        apart = queries.flatten(2, 3).transpose(1, 2)  # [n, H, S, D]
        part, part_lse = _flash(apart, keys, values, None, shape.scale, causal=True)
        part = part.view(count, kv_heads, group, -1, head_dim).permute(1, 0, 3, 2, 4)
        part_lse = part_lse.view(count, kv_heads, group, -1).permute(1, 0, 3, 2)
    else:
        flat = queries.transpose(1, 2).reshape(count, kv_heads, -1, head_dim)
        mask = batch.mask(group, shape.window, query.dtype)
        part, part_lse = _softmax_attention(flat, keys, values, mask, shape)
        part = part.view(count, kv_heads, -1, group, head_dim).transpose(0, 1)
        part_lse = part_lse.view(count, kv_heads, -1, group).transpose(0, 1)
    out.index_copy_(1, batch.write, part.reshape(kv_heads, -1, group, head_dim).float())
    lse.index_copy_(1, batch.write, part_lse.reshape(kv_heads, -1, group))


def _window_mask(plan: SegmentPlan, span: FullSpan, window: int, group: int) -> Tensor:
    keys = torch.arange(span.key_position, span.key_position + span.length)
    hidden = plan.positions[span.low : span.high, None] - keys >= window
    return _as_mask(hidden, torch.float32).repeat_interleave(group, dim=0)


def _as_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """Attention of ``[n, H_kv, rows, D]`` queries with its log-sum-exp ``[n, H_kv, rows]``."""
    if shape.soft_cap is None and shape.window is None:
        return _flash(query, key, value, mask, shape.scale, causal=False)
    scores = query.float() @ key.float().transpose(-1, -2) * shape.scale
    if shape.soft_cap is not None:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1).clamp_min(torch.finfo(torch.float32).min))
    return weights @ value.float(), lse


def _flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """PyTorch's fused CPU attention, which also returns the natural log-sum-exp."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001  the only form with the lse
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, native: NativeOps | None) -> None:
    """Fold a partial result ``[H_kv, rows, D]`` into ``out`` and ``lse`` in place."""
    if native is not None and part.dtype == torch.bfloat16:
        native.merge(out, lse, part.contiguous(), part_lse.contiguous())
        return
    total = torch.logaddexp(lse, part_lse)
    out.mul_(torch.exp(lse - total).unsqueeze(-1))
    out.addcmul_(part.float(), torch.exp(part_lse - total).unsqueeze(-1))
    lse.copy_(total)
