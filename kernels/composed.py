"""Operations that a kernel set can make of its others, for sets that do not fuse them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import checks
from kernels.api import Activation, KernelInputError, KernelSet, LastLayerOps, LayerOps, LayersOp, LinearOp, SublayerOp
from kernels.weights import Weight

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
    return capped(logits, soft_cap)


def capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    """``soft_cap * tanh(logits / soft_cap)`` written over ``logits``, if there is a cap."""
    return logits if soft_cap is None else logits.div_(soft_cap).tanh_().mul_(soft_cap)


class ComposedLayers:
    """The layers of a kernel set made of its other operations, to inherit."""

    def join_layers(self, layers: Sequence[LayerOps], last: LastLayerOps) -> LayersOp | None:
        del layers, last
        return None  # one operation after the other

    def pack_normed_linear(
        self: KernelSet, norm: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> SublayerOp:
        checks.check_normed_linear(norm, weight, bias)
        return normed_linear(self, norm, eps, self.pack_linear(weight, bias))

    def pack_feed_forward(
        self: KernelSet,
        norm: Tensor,
        eps: float,
        gate_up: Weight,
        down: Weight,
        activation: Activation,
        *,
        int8: bool = False,
    ) -> SublayerOp:
        checks.check_feed_forward(norm, gate_up, down, int8=int8)
        if int8:
            raise KernelInputError("int8: feed-forward parts in 8 bits run on a CPU only")
        return feed_forward(self, norm, eps, self.pack_linear(gate_up), self.pack_linear(down), activation)
