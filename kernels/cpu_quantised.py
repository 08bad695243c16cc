"""8-bit keys and values on a CPU: rounded once when they are made, widened where they are read."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.api import CODE_LIMIT, QuantisedPool


def store_quantised(fresh: Tensor, pool: QuantisedPool, rows: Tensor, slots: Tensor) -> None:
    """Round ``fresh`` ``[T, H_kv, D]`` in place to codes times scales, and keep the rows that are wanted."""
    limit = CODE_LIMIT[pool.codes.dtype]
    # both ends by one pass; NaN comes through, and an infinity makes the scale infinite and its codes NaN times 0
    low, high = torch.aminmax(fresh.float(), dim=-1)
    scales = torch.maximum(-low, high).div_(limit)
    ratio = fresh.float().div_(torch.where(scales > 0, scales, 1.0).unsqueeze(-1))
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    if pool.codes.dtype == torch.int8:
        ratio = ratio.round_().nan_to_num_(0.0)
    codes = ratio.clamp_(-limit, limit).to(pool.codes.dtype)
    fresh.copy_(codes.float().mul_(scales.unsqueeze(-1)))
    # as bytes: PyTorch has no indexing of 8-bit floats
    kept = codes.view(torch.uint8).index_select(0, rows).transpose(0, 1)
    pool.codes.view(torch.uint8).index_copy_(1, slots, kept)
    pool.scales.index_copy_(1, slots, scales.index_select(0, rows).T)


def dequantise(pool: QuantisedPool, where: Tensor | slice, dtype: torch.dtype) -> Tensor:
    """The numbers at some slots, ``[H_kv, keys, D]``, rounded once to ``dtype``."""
    if isinstance(where, slice):
        codes, scales = pool.codes[:, where], pool.scales[:, where]
    else:
        codes = pool.codes.view(torch.uint8).index_select(1, where).view(pool.codes.dtype)
        scales = pool.scales.index_select(1, where)
    return codes.float().mul_(scales.unsqueeze(-1)).to(dtype)
