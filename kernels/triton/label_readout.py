"""Read a row at its last position: a few logits, or the whole softmax denominator.

    reads    hidden     [R, d] float32   dense, after the final norm
    reads    head       [V, d]           last axis dense
    reads    label_ids  [R, C] int64     dense
    writes   logits     [R, C] float32   in full
    writes   partial    [P, R] float32   natural log-sum-exp of a run of the vocabulary, per row

Grid of the labels: (R, C), one dot product each. Grid of the log-sum-exp: (P, R / ROWS);
each program walks COLUMNS_PER_PROGRAM vocabulary columns with a running maximum, so the
[R, V] logits never exist, and the P partials are joined after. All sums are float32.
Judge: kernels.reference.ReferenceKernels.label_logits and log_sum_exp.
"""

# ruff: noqa: N803  (constexpr names are in capitals)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LABEL_DEPTH = 1024  # hidden elements per iteration
LOG_SUM_EXP_TILE = {"ROWS": 32, "COLUMNS": 64, "DEPTH": 32, "COLUMNS_PER_PROGRAM": 1024}
LOG_SUM_EXP_WARPS = 8  # four spill on sm_100


@triton.jit
def label_logits_kernel(
    hidden_ptr, head_ptr, label_ids_ptr, logits_ptr, width, hidden_stride, head_stride, DEPTH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    label = row * tl.num_programs(1) + tl.program_id(1)
    column = tl.load(label_ids_ptr + label)
    acc = tl.zeros([DEPTH], tl.float32)
    for start in range(0, width, DEPTH):
        cols = start + tl.arange(0, DEPTH)
        real = cols < width
        hidden = tl.load(hidden_ptr + row * hidden_stride + cols, mask=real, other=0.0)
        weight = tl.load(head_ptr + column * head_stride + cols, mask=real, other=0.0)
        acc += hidden * weight.to(tl.float32)
    tl.store(logits_ptr + label, tl.sum(acc, 0))


# one binary for any number of rows: a request must not meet the compiler
@triton.jit(do_not_specialize=["num_rows"])
def log_sum_exp_kernel(
    hidden_ptr, head_ptr, partial_ptr, num_rows, vocabulary, width, hidden_stride, head_stride,
    SOFT_CAP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS_PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real_rows = rows < num_rows
    top = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for step in range(0, COLUMNS_PER_PROGRAM, COLUMNS):
        columns = part * COLUMNS_PER_PROGRAM + step + tl.arange(0, COLUMNS)
        real_columns = columns < vocabulary
        logits = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, width, DEPTH):
            cols = start + tl.arange(0, DEPTH)
            real = cols < width
            hidden = tl.load(
                hidden_ptr + (rows * hidden_stride)[:, None] + cols[None, :],
                mask=real_rows[:, None] & real[None, :],
                other=0.0,
            )  # [ROWS, DEPTH]
            weight = tl.load(
                head_ptr + (columns * head_stride)[None, :] + cols[:, None],
                mask=real_columns[None, :] & real[:, None],
                other=0.0,
            )  # [DEPTH, COLUMNS]
            # three TF32 products carry the 24 bits of a float32
            logits = tl.dot(hidden, weight.to(tl.float32), logits, input_precision="tf32x3")
        if SOFT_CAP > 0.0:
            # tanh(y) is 2 * sigmoid(2 y) - 1
            logits = SOFT_CAP * (2.0 * tl.sigmoid(logits * (2.0 / SOFT_CAP)) - 1.0)
        logits = tl.where(real_columns[None, :], logits, -1.0e30)
        new_top = tl.maximum(top, tl.max(logits, 1))
        weights = tl.where(real_columns[None, :], tl.exp(logits - new_top[:, None]), 0.0)
        total = total * tl.exp(top - new_top) + tl.sum(weights, 1)
        top = new_top
    # every part holds at least one column, so the total is at least 1
    tl.store(partial_ptr + part * num_rows + rows, top + tl.log(total), mask=real_rows)


def label_logits(hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None) -> Tensor:
    """Launch one dot product per label of every row; they are few, so a cap is applied after."""
    rows, labels = label_ids.shape
    logits = hidden.new_empty((rows, labels))
    label_logits_kernel[rows, labels](
        hidden, head, label_ids, logits, hidden.shape[1], hidden.stride(0), head.stride(0),
        DEPTH=LABEL_DEPTH, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return logits if soft_cap is None else logits.div_(soft_cap).tanh_().mul_(soft_cap)


def log_sum_exp(hidden: Tensor, head: Tensor, soft_cap: float | None) -> Tensor:
    """Launch the walk over the vocabulary and join its parts."""
    rows, width = hidden.shape
    parts = triton.cdiv(head.shape[0], LOG_SUM_EXP_TILE["COLUMNS_PER_PROGRAM"])
    partial = hidden.new_empty((parts, rows))
    log_sum_exp_kernel[parts, triton.cdiv(rows, LOG_SUM_EXP_TILE["ROWS"])](
        hidden, head, partial, rows, head.shape[0], width, hidden.stride(0), head.stride(0),
        SOFT_CAP=soft_cap or 0.0, **LOG_SUM_EXP_TILE, num_warps=LOG_SUM_EXP_WARPS, num_stages=3, enable_fp_fusion=True,
    )  # fmt: skip
    return torch.logsumexp(partial, dim=0)
