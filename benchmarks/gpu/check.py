"""Judge a method before it is timed.

The bound is the one that FlashAttention's tests use: twice the error that PyTorch's own
attention makes on the same inputs in the same dtype, so it needs no constant per shape.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.workloads import Step
from kernels.reference import ReferenceKernels

_SAMPLED_ROWS = 64
_SLACK = 1e-5


class CheckFailed(Exception):
    """A result is further from float32 than rounding explains."""


class Judge:
    """Knows the right result of some rows of one step, spread over all of it."""

    def __init__(self, step: Step) -> None:
        total = step.workload.num_tokens
        self._rows = np.unique(np.linspace(0, total - 1, min(total, _SAMPLED_ROWS)).astype(np.int64))
        table = step.table_of(self._rows)
        kernels = ReferenceKernels()
        plan = kernels.plan(table)
        index = torch.from_numpy(self._rows).to(step.query.device)
        query = step.query[index]
        tensors = query, step.key, step.value, step.key_pool, step.value_pool
        key, value, key_pool, value_pool = (t.float() for t in tensors[1:])
        self._wanted = kernels.attend(query.float(), key, value, key_pool, value_pool, plan, step.workload.shape)
        keys, values = (
            torch.cat([step.prefix(pool), fresh.transpose(0, 1)], dim=1)
            for pool, fresh in ((step.key_pool, step.key), (step.value_pool, step.value))
        )
        plain = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=_visible(step, self._rows).to(query.device),
            scale=step.workload.shape.scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
        self.bound = 2 * self._error(plain) + _SLACK

    def check(self, result: Tensor) -> float:
        """The largest error of the sampled rows of ``result`` [T, H, D].

        Raises:
            CheckFailed: it is above the bound, or not a number.
        """
        error = self._error(result[torch.from_numpy(self._rows).to(result.device)])
        if not error <= self.bound:
            raise CheckFailed(f"largest error {error:.2e}, at most {self.bound:.2e} allowed")
        return error

    def _error(self, rows: Tensor) -> float:
        difference = (rows.float() - self._wanted).abs().max().item()
        return float(difference)


def _visible(step: Step, rows: np.ndarray) -> Tensor:
    """``[rows, P + T]``: the prefix, and what a row's own tokens have before and at it."""
    lengths = np.array(step.workload.row_tokens)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    tokens = np.arange(step.workload.num_tokens)
    own = (row_of[rows][:, None] == row_of[None, :]) & (tokens[None, :] <= rows[:, None])
    return torch.from_numpy(np.concatenate([np.ones((len(rows), step.workload.prefix_tokens), bool), own], axis=1))
