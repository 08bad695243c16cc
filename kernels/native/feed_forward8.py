"""The feed-forward parts of ``feed_forward8.c`` as operations on tensors."""

from __future__ import annotations

import ctypes
import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.api import Activation, SublayerOp
from kernels.native.linear import NativeLinear, StreamLayer
from kernels.native.linear_parts import GATES, INT8, TILE, LayerParts, PackedWeight
from kernels.turning import TURNED_INPUTS, turn_rows
from kernels.weights import Weight, dense

_LOG = logging.getLogger(__name__)

_SCALE_BYTES = 4
# a code may differ by one where a number is halfway between two; results are rounded to bfloat16
_TOLERANCE = 2.0**-6


class NativeFeedForward8:
    """Feed-forward parts in whole numbers of 8 bits, bit for bit the same for a row whatever rows stand beside it.

    Args:
        linear: Of the same library.
    """

    def __init__(self, library: ctypes.CDLL, linear: NativeLinear) -> None:
        self._linear = linear
        self._pack = library.pack_weight8
        self._pack.argtypes, self._pack.restype = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3, None

    def __call__(self, norm: Tensor, eps: float, gate_up: Weight, down: Weight, activation: Activation) -> SublayerOp:
        """See :meth:`kernels.api.KernelSet.pack_feed_forward` with ``int8``; weights are bfloat16. Holds packed copies.

        What is given raises MemoryError where a thread found no memory to work in.
        """
        (width, inner), norm = down.shape, norm.float()
        parts = LayerParts(
            first=self._packed(dense(gate_up), gated=True), inputs=width, width=width, norm=norm, eps=eps,
            second=self._packed(dense(down)), inner=inner, gate=GATES[activation],
        )  # fmt: skip
        return StreamLayer(self._linear, parts)

    def _packed(self, weight: Tensor, *, gated: bool = False) -> PackedWeight:
        rows, inputs = weight.shape
        panels = 2 * -(-rows // 2 // TILE) if gated else -(-rows // TILE)
        numbers = weight.contiguous()
        panel_bytes = TILE * (-(-inputs // TURNED_INPUTS) * TURNED_INPUTS + _SCALE_BYTES)
        packed = PackedWeight(torch.empty(panels * panel_bytes, dtype=torch.uint8), INT8)
        self._pack(numbers.data_ptr(), packed.memory.data_ptr(), rows, inputs, gated)
        return packed


def load_feed_forward8(library: ctypes.CDLL, linear: NativeLinear | None) -> NativeFeedForward8 | None:
    """Those of a library with ``linear``, or None where it has none or does not agree with whole-number products."""
    if linear is None:
        return None
    feed_forward = NativeFeedForward8(library, linear)
    if not (_agrees(feed_forward, "silu") and _agrees(feed_forward, "gelu_tanh")):
        _LOG.warning("native feed-forward parts in 8 bits disagree with whole-number products and are not used")
        return None
    return feed_forward


def _agrees(feed_forward: NativeFeedForward8, activation: Activation) -> bool:
    """With more inputs than are added up at once, no whole tile of anything, few rows and more than threads share."""
    rng = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).bfloat16()

    x, stream, norm, eps = random(300, 1600), random(300, 1600).float(), random(1600).float(), 0.5
    gate_up, down = random(180, 1600) / 40, random(1600, 90) / 9
    grown = stream + x.float()
    normed = F.rms_norm(grown, (1600,), norm, eps).bfloat16()
    gate, up = _product(normed, gate_up).chunk(2, dim=-1)
    opened = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    wanted = _product((opened * up).bfloat16(), down)
    part = feed_forward(norm, eps, gate_up, down, activation)
    few, got = part(stream[:21].clone(), x[:21]), part(stream, x)
    return (
        torch.equal(stream, grown)
        and torch.equal(few, got[:21])
        and float((got.float() - wanted).abs().max()) < _TOLERANCE * float(wanted.abs().max())
    )


def _product(x: Tensor, weight: Tensor) -> Tensor:
    (codes, scales), (weight_codes, weight_scales) = _rounded(x), _rounded(weight)
    return ((codes @ weight_codes.T) * scales * weight_scales.T).float()


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of turned rows, float64."""
    turned = turn_rows(rows.double())
    scales = turned.abs().amax(dim=1, keepdim=True) / 127
    return (turned / scales).round(), scales
