"""Join the shares of split tiles into their rows of the result.

    reads    partial                  [X, H_kv, TILE_ROWS, D]  float32, not divided by the sum
    reads    partial_top, partial_sum [X, H_kv, TILE_ROWS]     float32; tops are in base 2
    reads    merges                   [Y, 4] int32: token_lo, token_hi, first partial, number
    writes   out                      [Q, H, D]  rows of the split tiles only

Grid: (split tiles, H_kv, TILE_ROWS / ROWS). Each share holds keys that no other share of
its tile holds, so a row's weights add up after they are brought to a common top.
Judge: kernels.reference.ReferenceKernels.attend.
"""

# ruff: noqa: N803  (constexpr names are in capitals)
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# rows per program: with D = 256 still 16 KiB of accumulator
ROWS = 16
NUM_WARPS = 4


@triton.jit
def merge_partials_kernel(
    out_ptr, partial_ptr, partial_top_ptr, partial_sum_ptr, merges_ptr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
    TILE_ROWS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    num_kv_heads = tl.num_programs(1).to(tl.int64)
    merge = merges_ptr + tl.program_id(0) * 4
    token_lo = tl.load(merge)
    token_hi = tl.load(merge + 1)
    first = tl.load(merge + 2).to(tl.int64)
    count = tl.load(merge + 3)

    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    real_dims = dims < HEAD_DIM
    acc = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
    top = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for share in range(count):
        slot = ((first + share) * num_kv_heads + kv_head) * TILE_ROWS + row
        share_top = tl.load(partial_top_ptr + slot)
        share_acc = tl.load(partial_ptr + slot[:, None] * HEAD_DIM + dims[None, :], mask=real_dims[None, :], other=0.0)
        new_top = tl.maximum(top, share_top)
        decay = tl.exp2(top - new_top)
        weight = tl.exp2(share_top - new_top)
        acc = acc * decay[:, None] + share_acc * weight[:, None]
        total = total * decay + tl.load(partial_sum_ptr + slot) * weight
        top = new_top

    tokens = token_lo + row // GROUP
    real_rows = (row < TILE_ROWS // GROUP * GROUP) & (tokens < token_hi)
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    out_row = tokens.to(tl.int64) * (num_kv_heads * GROUP) + kv_head * GROUP + row % GROUP
    tl.store(
        out_ptr + out_row[:, None] * HEAD_DIM + dims[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=real_rows[:, None] & real_dims[None, :],
    )


def merge_partials(
    out: Tensor, partial: Tensor, partial_top: Tensor, partial_sum: Tensor, merges: Tensor, *, group: int
) -> None:
    """Launch the merge; the attention kernel of the same step wrote the shares."""
    _, num_kv_heads, tile_rows, head_dim = partial.shape
    merge_partials_kernel[merges.shape[0], num_kv_heads, tile_rows // ROWS](
        out, partial, partial_top, partial_sum, merges,
        GROUP=group, HEAD_DIM=head_dim, HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
        TILE_ROWS=tile_rows, ROWS=ROWS, num_warps=NUM_WARPS, enable_fp_fusion=True,
    )  # fmt: skip
