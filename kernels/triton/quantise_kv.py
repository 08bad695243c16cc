"""Write the keys and values that are kept into a quantised pool, and round those of the step alike.

    reads    key, value                  [T, H_kv, D]
    reads    rows, slots                 [K] int64           packed row, and block_id * B + offset
    writes   key_codes, value_codes      [H_kv, S, D]        at ``slots`` only; int8 or 8-bit float
    writes   key_scales, value_scales    [H_kv, S] float32   at ``slots`` only
    writes   key, value                  [T, H_kv, D]        codes times scales, in place, in full

Grid of the store: (K, H_kv); of the rounding: (T, H_kv), after it in the same stream. Each
program takes one row of K and one of V. Rounding what is rounded changes nothing, so either
order gives the same codes. Scales and quotients are float32.
Judge: kernels.reference.ReferenceKernels.store_kv.
"""

# ruff: noqa: N803, N806  (constexpr names are in capitals)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.api import CODE_LIMIT, QuantisedPool


@triton.jit
def _encode(row, CODE_LIMIT: tl.constexpr, INTEGER: tl.constexpr):
    """Code of every number of a row, not yet narrowed, and the row's scale."""
    LARGEST: tl.constexpr = 3.4028234663852886e38
    # asked apart: a maximum would pass over NaN
    finite = tl.min(tl.where(tl.abs(row) <= LARGEST, 1, 0), 0) == 1
    row = tl.where(finite, row, 0.0)
    scale = tl.max(tl.abs(row), 0) / CODE_LIMIT
    code = row / tl.where(scale > 0.0, scale, 1.0)
    # the quotient of the greatest number may be a rounding above the limit
    code = tl.minimum(tl.maximum(code, -CODE_LIMIT), CODE_LIMIT)
    if INTEGER:
        # to the nearest, ties to even: the sum with 1.5 * 2**23 has no fraction
        code = (code + 12582912.0) - 12582912.0
    return code, tl.where(finite, scale, float("nan"))


@triton.jit
def store_quantised_kernel(
    key_ptr, value_ptr, key_codes_ptr, value_codes_ptr, key_scales_ptr, value_scales_ptr, rows_ptr, slots_ptr,
    key_row_stride, key_head_stride, value_row_stride, value_head_stride,
    key_pool_head_stride, key_pool_slot_stride, value_pool_head_stride, value_pool_slot_stride,
    key_scales_head_stride, value_scales_head_stride,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, CODE_LIMIT: tl.constexpr, INTEGER: tl.constexpr,
):  # fmt: skip
    kept = tl.program_id(0).to(tl.int64)
    # widened before any multiply: a pool holds more than 2**31 elements
    head = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + kept)
    slot = tl.load(slots_ptr + kept)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    real = dims < HEAD_DIM
    key = tl.load(key_ptr + row * key_row_stride + head * key_head_stride + dims, mask=real, other=0.0)
    value = tl.load(value_ptr + row * value_row_stride + head * value_head_stride + dims, mask=real, other=0.0)
    key_code, key_scale = _encode(key.to(tl.float32), CODE_LIMIT, INTEGER)
    value_code, value_scale = _encode(value.to(tl.float32), CODE_LIMIT, INTEGER)
    key_at = key_codes_ptr + head * key_pool_head_stride + slot * key_pool_slot_stride + dims
    value_at = value_codes_ptr + head * value_pool_head_stride + slot * value_pool_slot_stride + dims
    tl.store(key_at, key_code.to(key_codes_ptr.dtype.element_ty), mask=real)
    tl.store(value_at, value_code.to(value_codes_ptr.dtype.element_ty), mask=real)
    tl.store(key_scales_ptr + head * key_scales_head_stride + slot, key_scale)
    tl.store(value_scales_ptr + head * value_scales_head_stride + slot, value_scale)


@triton.jit
def _round(at, real, codes_ptr, CODE_LIMIT: tl.constexpr, INTEGER: tl.constexpr):
    number = tl.load(at, mask=real, other=0.0)
    code, scale = _encode(number.to(tl.float32), CODE_LIMIT, INTEGER)
    if not INTEGER:
        code = code.to(codes_ptr.dtype.element_ty).to(tl.float32)
    tl.store(at, (code * scale).to(number.dtype), mask=real)


# codes_ptr is there for its dtype alone
@triton.jit
def round_kv_kernel(
    key_ptr, value_ptr, codes_ptr,
    key_row_stride, key_head_stride, value_row_stride, value_head_stride,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, CODE_LIMIT: tl.constexpr, INTEGER: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    real = dims < HEAD_DIM
    _round(key_ptr + token * key_row_stride + head * key_head_stride + dims, real, codes_ptr, CODE_LIMIT, INTEGER)
    _round(value_ptr + token * value_row_stride + head * value_head_stride + dims, real, codes_ptr, CODE_LIMIT, INTEGER)


def constants(codes: torch.dtype, head_dim: int) -> dict[str, object]:
    """The constexpr arguments of both kernels, by name."""
    return {
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": triton.next_power_of_2(head_dim),
        "CODE_LIMIT": CODE_LIMIT[codes],
        "INTEGER": not codes.is_floating_point,
    }


def store_quantised(
    key: Tensor, value: Tensor, key_pool: QuantisedPool, value_pool: QuantisedPool, rows: Tensor, slots: Tensor
) -> None:
    """Launch the scatter, then the rounding in place."""
    tokens, num_kv_heads, head_dim = key.shape
    constant = constants(key_pool.codes.dtype, head_dim)
    strides = key.stride(0), key.stride(1), value.stride(0), value.stride(1)
    store_quantised_kernel[rows.shape[0], num_kv_heads](
        key, value, key_pool.codes, value_pool.codes, key_pool.scales, value_pool.scales, rows, slots, *strides,
        key_pool.codes.stride(0), key_pool.codes.stride(1), value_pool.codes.stride(0), value_pool.codes.stride(1),
        key_pool.scales.stride(0), value_pool.scales.stride(0), **constant, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    round_kv_kernel[tokens, num_kv_heads](
        key, value, key_pool.codes, *strides, **constant, num_warps=1, enable_fp_fusion=True
    )
