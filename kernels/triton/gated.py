"""Gated activations: ``silu(gate) * up``, or with ``GELU`` the tanh approximation of ``gelu(gate) * up``.

    reads    gate_up  [T, 2F]   gate first; last axis dense
    writes   out      [T, F]    in full, dense, in the dtype of gate_up

Grid: (T, F / COLS). Computed in float32, rounded once.
Judge: kernels.reference.ReferenceKernels.swiglu and geglu.
"""

# ruff: noqa: N803  (constexpr names are in capitals)
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

COLS = 1024


@triton.jit
def gated_kernel(gate_up_ptr, out_ptr, width, row_stride, GELU: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    real = cols < width
    source = gate_up_ptr + row * row_stride + cols
    gate = tl.load(source, mask=real, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=real, other=0.0).to(tl.float32)
    inner = gate
    if GELU:  # 0.5 * (1 + tanh(y)) is sigmoid(2 y), here with y = sqrt(2 / pi) * (gate + 0.044715 * gate**3)
        inner = 1.5957691216 * (gate + 0.044715 * gate * gate * gate)
    result = gate * tl.sigmoid(inner) * up
    tl.store(out_ptr + row * width + cols, result.to(out_ptr.dtype.element_ty), mask=real)


def gated(gate_up: Tensor, *, gelu: bool) -> Tensor:
    """Launch the gate of every row."""
    tokens, both = gate_up.shape
    width = both // 2
    out = gate_up.new_empty((tokens, width))
    gated_kernel[tokens, triton.cdiv(width, COLS)](
        gate_up, out, width, gate_up.stride(0), GELU=gelu, COLS=COLS, num_warps=4, enable_fp_fusion=True
    )
    return out
