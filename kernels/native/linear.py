"""The linear layers of ``linear.c`` and the head of ``vocabulary.c`` as operations on tensors."""

from __future__ import annotations

import ctypes
import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.api import Activation

_LOG = logging.getLogger(__name__)

_POINTERS = ("stream", "x", "norm", "first", "second", "bias", "out")
_SIZES = ("rows", "in", "inner", "out_width", "x_stride", "gate")
_GATES: dict[Activation, int] = {"silu": 1, "gelu_tanh": 2}
# outputs of a panel, and inputs of a step along it
_TILE = 32
# results are rounded to bfloat16 once; the inside of a feed-forward part and its normed input too
_TOLERANCE = 2.0**-6
# hidden states keep 16 bits in their product with the head; absolute, of a log-sum-exp
_SUM_TOLERANCE = 2.0**-12


class _Layer(ctypes.Structure):
    """``layer`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("eps", ctypes.c_float),
    )


class NativeLinear:
    """Linear layers in bfloat16 with AMX, bit for bit the same for a row whatever rows stand beside it.

    Raises:
        AttributeError: the library was built for a processor without AMX.
        OSError: the operating system does not let this process use it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        if not library.tiles_allowed():
            raise OSError("the tile registers are not ours to use")
        self._run, self._pack = library.run_layer, library.pack_weight
        self._run.argtypes, self._run.restype = [ctypes.POINTER(_Layer)], ctypes.c_int
        self._pack.argtypes, self._pack.restype = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3, None
        self._log_sum_exp = library.log_sum_exp
        self._log_sum_exp.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3 + [ctypes.c_float]
        self._log_sum_exp.restype = ctypes.c_int

    def pack(self, weight: Tensor, *, gated: bool = False) -> Tensor:
        """``weight`` [out, in] bfloat16 in the layout of the product; ``gated``: it is gate and up, gate first."""
        dense = weight.contiguous()
        rows, inputs = weight.shape
        columns = _rounded_up(rows // 2) * 2 if gated else _rounded_up(rows)
        packed = torch.empty(columns * _rounded_up(inputs), dtype=weight.dtype)
        self._pack(dense.data_ptr(), packed.data_ptr(), rows, inputs, gated)
        return packed

    def run(
        self,
        x: Tensor,
        first: Tensor,
        out_width: int,
        *,
        stream: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 0.0,
        bias: Tensor | None = None,
        second: Tensor | None = None,
        inner: int = 0,
        activation: Activation | None = None,
    ) -> Tensor:
        """``[T, out_width]`` of a linear layer, or with ``second`` of a feed-forward part.

        Args:
            x: ``[T, in]`` bfloat16, rows dense: the input, or with ``stream`` what is added to it.
            first, second: From :meth:`pack`; ``first`` gated where ``activation`` is given.
            stream: ``[T, in]`` float32, dense; its norm with ``norm`` [in] float32 is the input.
            bias: ``[out_width]`` float32.
            inner: Outputs of the gate.

        Raises:
            MemoryError: a thread found no memory to work in.
        """
        out = torch.empty(len(x), out_width, dtype=x.dtype)
        layer = _Layer(
            *(None if each is None else each.data_ptr() for each in (stream, x, norm, first, second, bias, out)),
            len(x), x.shape[1], inner, out_width, x.stride(0), 0 if activation is None else _GATES[activation], eps,
        )  # fmt: skip
        if self._run(ctypes.byref(layer)):
            raise MemoryError("a thread found no memory for the workspace of a linear layer")
        return out

    def log_sum_exp(self, hidden: Tensor, head: Tensor, soft_cap: float | None) -> Tensor:
        """See :meth:`kernels.api.KernelSet.log_sum_exp`; ``head`` is bfloat16, both are dense.

        Raises:
            MemoryError: a thread found no memory to work in.
        """
        out = torch.empty(len(hidden))
        if self._log_sum_exp(
            hidden.data_ptr(), head.data_ptr(), out.data_ptr(), len(hidden), *head.shape, soft_cap or 0.0
        ):
            raise MemoryError("a thread found no memory for the workspace of a log-sum-exp")
        return out


def load_native_linear(library: ctypes.CDLL) -> NativeLinear | None:
    """The linear layers of a library, or None where it has none or does not agree with PyTorch."""
    try:
        linear = NativeLinear(library)
    except (AttributeError, OSError):
        return None
    if not _agrees(linear):
        _LOG.warning("native linear layers disagree with PyTorch on this processor and are not used")
        return None
    return linear


def _rounded_up(extent: int) -> int:
    return -(-extent // _TILE) * _TILE


def _agrees(linear: NativeLinear) -> bool:
    """Compare on sizes that are no multiple of a tile, with few rows and with more than threads share."""
    return _layer_agrees(linear) and all(_feed_forward_agrees(linear, gate) for gate in _GATES) and _sums_agree(linear)


def _layer_agrees(linear: NativeLinear) -> bool:
    """With more inputs than are added up at once; a row among many has the bits that it has among few."""
    random = _Random()
    x, weight, bias = random(300, 870), random(50, 870) / 32, random(50).float()
    packed = linear.pack(weight)
    got = linear.run(x, packed, 50, bias=bias)
    among_few = linear.run(x[263:], packed, 50, bias=bias)
    return torch.equal(got[263:], among_few) and _close(got, F.linear(x.float(), weight.float(), bias))


def _feed_forward_agrees(linear: NativeLinear, activation: Activation) -> bool:
    random = _Random()
    x, stream, norm = random(37, 70), random(37, 70).float(), random(70).float()
    gate_up, down, eps = random(96, 70) / 8, random(70, 48) / 7, 0.5
    grown = stream + x.float()
    gate, up = (F.rms_norm(grown, (70,), norm, eps).bfloat16().float() @ gate_up.float().T).chunk(2, dim=-1)
    opened = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    wanted = (opened * up).bfloat16().float() @ down.float().T
    first, second = linear.pack(gate_up, gated=True), linear.pack(down)
    got = linear.run(x, first, 70, stream=stream, norm=norm, eps=eps, second=second, inner=48, activation=activation)
    return torch.equal(stream, grown) and _close(got, wanted)


def _sums_agree(linear: NativeLinear) -> bool:
    """So closely that the low half of a hidden state shows."""
    random = _Random()
    hidden, head = random(37, 70).float() * 1.001, random(1100, 70) / 4
    logits = hidden @ head.float().T
    pairs = (
        (linear.log_sum_exp(hidden, head, soft_cap), capped.logsumexp(-1))
        for soft_cap, capped in ((None, logits), (5.0, 5.0 * (logits / 5.0).tanh()))
    )
    return all(torch.allclose(got, wanted, rtol=0.0, atol=_SUM_TOLERANCE) for got, wanted in pairs)


def _close(got: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(got.float(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)


class _Random:
    """Standard normal numbers in bfloat16, the same in every process."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).bfloat16()
