"""Operations that a kernel set can make of its others, for sets that do not fuse them."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.api import Activation, KernelSet, LinearOp, SublayerOp

_VOCABULARY_CHUNK = 16_384


def normed_linear(kernels: KernelSet, norm: Tensor, eps: float, linear: LinearOp) -> SublayerOp:
    """See :meth:`kernels.api.KernelSet.pack_normed_linear`."""

    def run(stream: Tensor, update: Tensor) -> Tensor:
        return linear(kernels.add_rms_norm(stream, update, norm, eps))

    return run


def feed_forward(
    kernels: KernelSet, norm: Tensor, eps: float, gate_up: LinearOp, down: LinearOp, activation: Activation
) -> SublayerOp:
    """See :meth:`kernels.api.KernelSet.pack_feed_forward`."""

    def run(stream: Tensor, update: Tensor) -> Tensor:
        both = gate_up(kernels.add_rms_norm(stream, update, norm, eps))
        return down(kernels.swiglu(both) if activation == "silu" else kernels.geglu(both))

    return run


def vocabulary_logits(hidden: Tensor, head: Tensor, soft_cap: float | None) -> Tensor:
    """See :meth:`kernels.api.KernelSet.vocabulary_logits`; a part of the head at a time in float32."""
    logits = torch.empty(len(hidden), len(head), dtype=torch.float32, device=hidden.device)
    for start in range(0, len(head), _VOCABULARY_CHUNK):
        part = head[start : start + _VOCABULARY_CHUNK].float()
        torch.mm(hidden, part.T, out=logits[:, start : start + len(part)])
    return logits if soft_cap is None else logits.div_(soft_cap).tanh_().mul_(soft_cap)
