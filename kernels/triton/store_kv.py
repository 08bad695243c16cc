"""Write the keys and values that are kept into their slots of one layer's pool.

    reads    key, value             [T, H_kv, D]
    reads    rows, slots            [K] int64      packed row, and block_id * B + offset
    writes   key_pool, value_pool   [H_kv, S, D]   at ``slots`` only

Grid: (K, H_kv). Each program moves D elements of K and of V.
Judge: kernels.reference.ReferenceKernels.store_kv, bit for bit (a copy rounds nothing).
"""

# ruff: noqa: N803  (constexpr names are in capitals)
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def store_kv_kernel(
    key_ptr, value_ptr, key_pool_ptr, value_pool_ptr, rows_ptr, slots_ptr,
    key_row_stride, key_head_stride, value_row_stride, value_head_stride,
    key_pool_head_stride, key_pool_slot_stride, value_pool_head_stride, value_pool_slot_stride,
    HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
):  # fmt: skip
    kept = tl.program_id(0).to(tl.int64)
    # widened before any multiply: a pool holds more than 2**31 elements
    head = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + kept)
    slot = tl.load(slots_ptr + kept)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    real = dims < HEAD_DIM
    key = tl.load(key_ptr + row * key_row_stride + head * key_head_stride + dims, mask=real)
    value = tl.load(value_ptr + row * value_row_stride + head * value_head_stride + dims, mask=real)
    tl.store(key_pool_ptr + head * key_pool_head_stride + slot * key_pool_slot_stride + dims, key, mask=real)
    tl.store(value_pool_ptr + head * value_pool_head_stride + slot * value_pool_slot_stride + dims, value, mask=real)


def store_kv(key: Tensor, value: Tensor, key_pool: Tensor, value_pool: Tensor, rows: Tensor, slots: Tensor) -> None:
    """Launch the scatter. Two rows for one slot in one call are a caller's bug: the winner is undefined."""
    _, num_kv_heads, head_dim = key.shape
    store_kv_kernel[rows.shape[0], num_kv_heads](
        key, value, key_pool, value_pool, rows, slots,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        key_pool.stride(0), key_pool.stride(1), value_pool.stride(0), value_pool.stride(1),
        HEAD_DIM=head_dim, HEAD_DIM_PADDED=triton.next_power_of_2(head_dim), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
