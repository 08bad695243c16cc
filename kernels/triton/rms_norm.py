"""Root-mean-square norm along the last axis, also of a residual stream that takes an update first.

    reads    x       [T, d] or [T, H, d]   last axis dense
    reads    weight  [d]
    updates  stream  [T, d] float32 dense  in full, stream += x; only with ADD
    writes   out     as x, dense           in full, in the dtype of x: the norm of x, of stream with ADD

Grid: one program per ROWS rows (T * H of them). Squares, mean and product are float32.
Judge: kernels.reference.ReferenceKernels.rms_norm and add_rms_norm.
"""

# ruff: noqa: N803  (constexpr names are in capitals)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE_ELEMENTS = 4096


# one binary for any number of rows: a request must not meet the compiler
@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr, weight_ptr, stream_ptr, out_ptr, num_rows, eps, token_stride, head_stride,
    ADD: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDTH_PADDED)
    real_cols = cols < WIDTH
    real = (row < num_rows)[:, None] & real_cols[None, :]
    start = row // HEADS * token_stride + row % HEADS * head_stride
    x = tl.load(x_ptr + start[:, None] + cols[None, :], mask=real, other=0.0).to(tl.float32)  # [ROWS, WIDTH]
    weight = tl.load(weight_ptr + cols, mask=real_cols, other=0.0).to(tl.float32)
    if ADD:
        stream = stream_ptr + (row * WIDTH)[:, None] + cols[None, :]
        x += tl.load(stream, mask=real, other=0.0)
        tl.store(stream, x, mask=real)
    mean_square = tl.sum(x * x, 1) / WIDTH
    result = x * (1.0 / tl.sqrt(mean_square + eps))[:, None] * weight[None, :]
    tl.store(out_ptr + (row * WIDTH)[:, None] + cols[None, :], result.to(out_ptr.dtype.element_ty), mask=real)


def constants(width: int, *, heads: int = 1, add: bool = False) -> dict[str, int | bool]:
    """The constexpr arguments of the kernel, by name; heads of one token are rows of their own."""
    padded = triton.next_power_of_2(width)
    rows = max(_TILE_ELEMENTS // padded, 1)
    return {"ADD": add, "HEADS": heads, "WIDTH": width, "WIDTH_PADDED": padded, "ROWS": rows}


def num_warps(width: int) -> int:
    return 4 if width <= _TILE_ELEMENTS else 8


def rms_norm(x: Tensor, weight: Tensor, eps: float, stream: Tensor | None = None) -> Tensor:
    """Launch the norm of every row of ``x``, or of ``stream`` after ``x`` was added to it."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    width = x.shape[-1]
    num_rows = x.numel() // width
    heads = x.shape[1] if x.dim() == 3 else 1
    tile = constants(width, heads=heads, add=stream is not None)
    rms_norm_kernel[(triton.cdiv(num_rows, tile["ROWS"]),)](
        x, weight, stream, out, num_rows, eps, x.stride(0), x.stride(1) if x.dim() == 3 else 0,
        **tile, num_warps=num_warps(width), enable_fp_fusion=True,
    )  # fmt: skip
    return out
