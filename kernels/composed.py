"""Operations that a kernel set can make of its others, for sets that do not fuse them."""

from __future__ import annotations

from torch import Tensor

from kernels.api import Activation, KernelSet, LinearOp, SublayerOp


def normed_linear(kernels: KernelSet, norm: Tensor, eps: float, linear: LinearOp) -> SublayerOp:
    """See :meth:`kernels.api.KernelSet.pack_normed_linear`."""

    def run(stream: Tensor, update: Tensor) -> Tensor:
        return linear(kernels.add_rms_norm(stream, update, norm, eps))

    return run


def feed_forward(
    kernels: KernelSet, norm: Tensor, eps: float, gate_up: LinearOp, down: LinearOp, activation: Activation
) -> SublayerOp:
    """See :meth:`kernels.api.KernelSet.pack_feed_forward`."""
    gate = kernels.swiglu if activation == "silu" else kernels.geglu

    def run(stream: Tensor, update: Tensor) -> Tensor:
        return down(gate(gate_up(kernels.add_rms_norm(stream, update, norm, eps))))

    return run
