"""Attention of packed query rows over the runs of keys that a plan lists for them.

    reads    query                  [Q, H, D]      rows of the step, or of its last layer
    reads    key, value             [T, H_kv, D]   packed K/V of the step
    reads    key_pool, value_pool   [H_kv, S, D]   one layer's pool, or its 8-bit codes; then also
             key_scales, value_scales [H_kv, S]    float32
    reads    units, items, rows, block_ids         int32, see kernels.triton.plan.WorkList
    writes   out                    [Q, H, D]      in full, unless the tile is split; else
    writes   partial                [X, H_kv, TILE_ROWS, D]     float32, not divided by the sum
             partial_top, partial_sum [X, H_kv, TILE_ROWS]      float32; tops are in base 2

Grid: (units, H_kv). A program holds TILE_ROWS rows: the tokens of its unit times the GROUP
query heads that share its KV head, token-major. One running softmax goes over four loops:
bulk runs without any mask, then masked runs, from the pool and from the packed K/V.
Scores, sums and the accumulator are float32; weights are rounded to the dtype of fresh V.
Codes are widened to that dtype, which holds them exactly; the scale of a key multiplies its
scores after the dot, the scale of a value its weights before it.
Judge: kernels.reference.ReferenceKernels.attend.
"""

# ruff: noqa: N803, N806  (constexpr names are in capitals)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.api import AttentionShape, PoolHalf, QuantisedPool
from kernels.triton.merge_partials import merge_partials
from kernels.triton.metadata import StepMetadata
from kernels.triton.tuning import Launch, dot_precision


@triton.jit
def _soften(scores, scale, SOFT_CAP: tl.constexpr):
    """Scaled and capped scores in base 2, from plain dot products."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    if SOFT_CAP > 0.0:
        # tanh(x) = 1 - 2 / (1 + exp(2x)), right at both ends
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * scale * (2.0 * LOG2_E / SOFT_CAP)))
        return scores * (SOFT_CAP * LOG2_E)
    # after the dot: a query scaled in bf16 would be rounded twice
    return scores * (scale * LOG2_E)


@triton.jit
def _seen_range(record, tokens, end, rows_ptr, num_queries, WINDOW: tl.constexpr):
    """Per row of the tile, the keys [seen_lo, seen_hi) of a masked run that it sees."""
    in_span = (tokens >= tl.load(record + 2)) & (tokens < tl.load(record + 3))
    own = tl.load(record + 5)
    if own == 1:
        seen_lo = tl.load(rows_ptr + num_queries + tokens, mask=in_span, other=0)
        # the run may stop short of what a row sees: the rest is in a bulk run
        seen_hi = tl.minimum(tl.load(rows_ptr + 2 * num_queries + tokens, mask=in_span, other=0), end)
    else:
        seen_lo = tl.zeros_like(tokens)
        if WINDOW > 0:
            position = tl.load(rows_ptr + tokens, mask=in_span, other=0)
            seen_lo = position - (WINDOW - 1) - tl.load(record + 4)
        seen_hi = tl.where(in_span, end, 0)
    return seen_lo, seen_hi


@triton.jit
def _load_tile(
    key_ptrs, value_ptrs, real_keys, real_dims,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
):  # fmt: skip
    """Keys and values of a tile; slots outside the run may hold NaN, and 0 * NaN is NaN: both are masked."""
    if MASKED:
        keys = tl.load(key_ptrs, mask=real_keys[None, :] & real_dims[:, None], other=0.0)
        values = tl.load(value_ptrs, mask=real_keys[:, None] & real_dims[None, :], other=0.0)
    elif HEAD_DIM == HEAD_DIM_PADDED:
        keys = tl.load(key_ptrs)
        values = tl.load(value_ptrs)
    else:
        keys = tl.load(key_ptrs, mask=real_dims[:, None], other=0.0)
        values = tl.load(value_ptrs, mask=real_dims[None, :], other=0.0)
    return keys, values


@triton.jit
def _walk(
    state, query, tokens, source, key_scales_ptr, value_scales_ptr, work, scale,
    FROM_POOL: tl.constexpr, MASKED: tl.constexpr, QUANTISED: tl.constexpr,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, TILE_KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The softmax state after the items of one loop.

    FROM_POOL: keys are found through block_ids. MASKED: a row sees a range of the run's keys.
    QUANTISED: keys and values are codes, each with a scale; otherwise both scale pointers are None.
    """
    # finite, so that a row which has seen nothing yet gives 0 - 0 and not inf - inf
    SENTINEL: tl.constexpr = -1.0e30
    acc, top, total = state
    keys_ptr, values_ptr, key_stride, value_stride = source
    items_ptr, item_lo, item_hi, rows_ptr, num_queries, block_ids_ptr = work
    dims = tl.arange(0, HEAD_DIM_PADDED)
    real_dims = dims < HEAD_DIM
    for item in range(item_lo, item_hi):
        record = items_ptr + item * 6
        first = tl.load(record)
        end = tl.load(record + 1)
        if MASKED:
            seen_lo, seen_hi = _seen_range(record, tokens, end, rows_ptr, num_queries, WINDOW)
        for at in range(first, end, TILE_KEYS):
            index = at + tl.arange(0, TILE_KEYS)
            real_keys = index < end
            lookup = index
            if MASKED:
                lookup = tl.where(real_keys, index, first)
            # widened before any multiply: a pool holds more than 2**31 elements
            if FROM_POOL:
                block = tl.load(block_ids_ptr + lookup // BLOCK_SIZE).to(tl.int64)
                slot = block * BLOCK_SIZE + lookup % BLOCK_SIZE
            else:
                slot = lookup.to(tl.int64)
            key_ptrs = keys_ptr + slot[None, :] * key_stride + dims[:, None]  # [D, TILE_KEYS]
            value_ptrs = values_ptr + slot[:, None] * value_stride + dims[None, :]  # [TILE_KEYS, D]
            keys, values = _load_tile(
                key_ptrs, value_ptrs, real_keys, real_dims, MASKED, HEAD_DIM, HEAD_DIM_PADDED
            )  # fmt: skip
            scores = tl.dot(query, keys.to(query.dtype), input_precision=PRECISION)
            if QUANTISED:
                # a place outside the run looks up the first key of the run, and has its scale
                scores *= tl.load(key_scales_ptr + slot)[None, :]
            scores = _soften(scores, scale, SOFT_CAP)
            if MASKED:
                seen = (index[None, :] >= seen_lo[:, None]) & (index[None, :] < seen_hi[:, None])
                scores = tl.where(seen, scores, SENTINEL)
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            if MASKED:
                weights = tl.where(seen, weights, 0.0)
            decay = tl.exp2(top - new_top)
            total = total * decay + tl.sum(weights, 1)
            if QUANTISED:
                weights *= tl.load(value_scales_ptr + slot)[None, :]
            weights = weights.to(query.dtype)
            acc = tl.dot(weights, values.to(query.dtype), acc * decay[:, None], input_precision=PRECISION)
            top = new_top
    return acc, top, total


# one binary for any number of queries: a request must not meet the compiler
@triton.jit(do_not_specialize=["num_queries"])
def tree_attention_kernel(
    query_ptr, key_ptr, value_ptr, key_pool_ptr, value_pool_ptr, out_ptr,
    key_scales_ptr, value_scales_ptr, partial_ptr, partial_top_ptr, partial_sum_ptr,
    units_ptr, items_ptr, rows_ptr, block_ids_ptr, num_queries, scale,
    query_row_stride, query_head_stride, key_row_stride, key_head_stride, value_row_stride, value_head_stride,
    key_pool_head_stride, key_pool_slot_stride, value_pool_head_stride, value_pool_slot_stride,
    key_scales_head_stride, value_scales_head_stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    num_kv_heads = tl.num_programs(1).to(tl.int64)
    unit = units_ptr + tl.program_id(0) * 8
    token_lo = tl.load(unit)
    token_hi = tl.load(unit + 1)
    partial = tl.load(unit + 2)

    row = tl.arange(0, TILE_ROWS)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    tokens = token_lo + row // GROUP  # token-major: a token's GROUP heads are neighbours
    # rows past the last whole token belong to none; token -1 stands in no span and sees no key
    real_rows = (row < TILE_ROWS // GROUP * GROUP) & (tokens < token_hi)
    tokens = tl.where(real_rows, tokens, -1)
    wide_tokens = tokens.to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    real = real_rows[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = wide_tokens * query_row_stride + head * query_head_stride
    query = tl.load(query_ptr + query_rows[:, None] + dims[None, :], mask=real, other=0.0)  # [TILE_ROWS, D]

    pool = (
        key_pool_ptr + kv_head * key_pool_head_stride, value_pool_ptr + kv_head * value_pool_head_stride,
        key_pool_slot_stride, value_pool_slot_stride,
    )  # fmt: skip
    fresh = (
        key_ptr + kv_head * key_head_stride, value_ptr + kv_head * value_head_stride,
        key_row_stride, value_row_stride,
    )  # fmt: skip
    if QUANTISED:
        key_scales_ptr += kv_head * key_scales_head_stride
        value_scales_ptr += kv_head * value_scales_head_stride
    state = (
        tl.zeros([TILE_ROWS, HEAD_DIM_PADDED], tl.float32),
        tl.full([TILE_ROWS], -1.0e30, tl.float32),
        tl.zeros([TILE_ROWS], tl.float32),
    )
    pool_bulk = tl.load(unit + 3)
    fresh_bulk = tl.load(unit + 4)
    pool_masked = tl.load(unit + 5)
    fresh_masked = tl.load(unit + 6)
    last = tl.load(unit + 7)
    state = _walk(
        state, query, tokens, pool, key_scales_ptr, value_scales_ptr,
        (items_ptr, pool_bulk, fresh_bulk, rows_ptr, num_queries, block_ids_ptr), scale,
        True, False, QUANTISED, HEAD_DIM, HEAD_DIM_PADDED, TILE_KEYS, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION,
    )  # fmt: skip
    state = _walk(
        state, query, tokens, fresh, None, None,
        (items_ptr, fresh_bulk, pool_masked, rows_ptr, num_queries, block_ids_ptr), scale,
        False, False, False, HEAD_DIM, HEAD_DIM_PADDED, TILE_KEYS, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION,
    )  # fmt: skip
    state = _walk(
        state, query, tokens, pool, key_scales_ptr, value_scales_ptr,
        (items_ptr, pool_masked, fresh_masked, rows_ptr, num_queries, block_ids_ptr), scale,
        True, True, QUANTISED, HEAD_DIM, HEAD_DIM_PADDED, TILE_KEYS, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION,
    )  # fmt: skip
    acc, top, total = _walk(
        state, query, tokens, fresh, None, None,
        (items_ptr, fresh_masked, last, rows_ptr, num_queries, block_ids_ptr), scale,
        False, True, False, HEAD_DIM, HEAD_DIM_PADDED, TILE_KEYS, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION,
    )  # fmt: skip

    if partial >= 0:
        slot = (partial.to(tl.int64) * num_kv_heads + kv_head) * TILE_ROWS + row
        tl.store(partial_ptr + slot[:, None] * HEAD_DIM + dims[None, :], acc, mask=(dims < HEAD_DIM)[None, :])
        tl.store(partial_top_ptr + slot, top)
        tl.store(partial_sum_ptr + slot, total)
    else:
        # a row that saw no key has total 0 and acc 0, and gives 0
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        out_rows = (wide_tokens * (num_kv_heads * GROUP) + head) * HEAD_DIM
        tl.store(out_ptr + out_rows[:, None] + dims[None, :], result.to(out_ptr.dtype.element_ty), mask=real)


def constants(
    shape: AttentionShape, launch: Launch, *, block_size: int, dtype: torch.dtype, quantised: bool
) -> dict[str, object]:
    """The constexpr arguments of the kernel, by name."""
    return {
        "GROUP": shape.num_heads // shape.num_kv_heads,
        "HEAD_DIM": shape.head_dim,
        "HEAD_DIM_PADDED": triton.next_power_of_2(shape.head_dim),
        "TILE_ROWS": launch.tile_rows,
        "TILE_KEYS": launch.tile_keys,
        "BLOCK_SIZE": block_size,
        "WINDOW": shape.window or 0,
        "SOFT_CAP": shape.soft_cap or 0.0,
        "PRECISION": dot_precision(dtype),
        "QUANTISED": quantised,
    }


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pool: PoolHalf,
    value_pool: PoolHalf,
    step: StepMetadata,
    shape: AttentionShape,
    launch: Launch,
) -> Tensor:
    """Launch the attention of one layer, and the merge when tiles were split.

    Args:
        step: Cut for ``launch`` and ``shape``; its query rows are those of ``query``.

    Returns:
        ``[Q, H, D]``, contiguous, in the dtype of ``query``. Does not wait for the device.
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    rows = (step.num_partials, shape.num_kv_heads, launch.tile_rows)
    partial = query.new_empty((*rows, shape.head_dim), dtype=torch.float32)
    partial_top, partial_sum = (query.new_empty(rows, dtype=torch.float32) for _ in range(2))
    keys, key_scales = _numbers_and_scales(key_pool)
    values, value_scales = _numbers_and_scales(value_pool)
    tree_attention_kernel[step.num_units, shape.num_kv_heads](
        query, key, value, keys, values, out, key_scales, value_scales, partial, partial_top, partial_sum,
        step.units, step.items, step.rows, step.block_ids, query.shape[0], shape.scale,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        key_scales.stride(0) if key_scales is not None else 0,
        value_scales.stride(0) if value_scales is not None else 0,
        **constants(
            shape, launch, block_size=step.block_size, dtype=query.dtype, quantised=key_scales is not None
        ),
        num_warps=launch.num_warps, num_stages=launch.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    if step.num_partials:
        merge_partials(out, partial, partial_top, partial_sum, step.merges, group=shape.num_heads // shape.num_kv_heads)
    return out


def _numbers_and_scales(pool: PoolHalf) -> tuple[Tensor, Tensor | None]:
    return (pool.codes, pool.scales) if isinstance(pool, QuantisedPool) else (pool, None)
