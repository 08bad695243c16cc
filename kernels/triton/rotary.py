"""Rotary embedding, half-split form, and before it the norm of every head where a model has one.

    reads    x         [T, H, D]            last axis dense; pairs (i, i + D/2)
    reads    weight    [D]                  of the norm; None where there is none
    reads    cos, sin  [T, D/2] float32     dense
    writes   out       [T, H, D], dense     in full, in the dtype of x

Grid: (T, H / HEADS). Squares, products and sums are float32; the result is rounded once.
Judge: kernels.reference.ReferenceKernels.rotate and norm_rotate.
"""

# ruff: noqa: N803  (constexpr names are in capitals)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS = 8


@triton.jit
def rotate_kernel(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, eps, num_heads, token_stride, head_stride,
    HALF: tl.constexpr, HALF_PADDED: tl.constexpr, HEADS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    cols = tl.arange(0, HALF_PADDED)
    real_cols = cols < HALF
    real = (head < num_heads)[:, None] & real_cols[None, :]
    source = x_ptr + token * token_stride + (head * head_stride)[:, None] + cols[None, :]
    first = tl.load(source, mask=real, other=0.0).to(tl.float32)  # [HEADS, D/2]
    second = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)
    if NORMED:
        mean_square = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF)
        scale = (1.0 / tl.sqrt(mean_square + eps))[:, None]
        first *= scale * tl.load(weight_ptr + cols, mask=real_cols, other=0.0).to(tl.float32)[None, :]
        second *= scale * tl.load(weight_ptr + HALF + cols, mask=real_cols, other=0.0).to(tl.float32)[None, :]
    cos = tl.load(cos_ptr + token * HALF + cols, mask=real_cols, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * HALF + cols, mask=real_cols, other=0.0)[None, :]
    target = out_ptr + token * (num_heads * 2 * HALF) + (head * 2 * HALF)[:, None] + cols[None, :]
    tl.store(target, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=real)
    tl.store(target + HALF, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=real)


def constants(head_dim: int, *, normed: bool) -> dict[str, object]:
    """The constexpr arguments of the kernel, by name."""
    half = head_dim // 2
    return {"HALF": half, "HALF_PADDED": triton.next_power_of_2(half), "HEADS": HEADS, "NORMED": normed}


def rotate(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """Launch the rotation of every head of every token, normed first if there is a ``weight``."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    tokens, num_heads, head_dim = x.shape
    rotate_kernel[tokens, triton.cdiv(num_heads, HEADS)](
        x, weight, cos, sin, out, eps, num_heads, x.stride(0), x.stride(1),
        **constants(head_dim, normed=weight is not None), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out
