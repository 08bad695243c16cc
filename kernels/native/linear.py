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
_GATES = {"silu": 1, "gelu_tanh": 2}
# outputs of a panel, and inputs of a step along it
_TILE = 32
# results are rounded to bfloat16 once; the inside of a feed-forward part and its normed input too
_TOLERANCE = 2.0**-6


class _Layer(ctypes.Structure):
    """``layer`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("eps", ctypes.c_float),
    )


class _Question(ctypes.Structure):
    """``question`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "head", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "vocabulary", "width", "whole")),
        ("soft_cap", ctypes.c_float),
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
        self._ask = library.run_vocabulary
        self._ask.argtypes, self._ask.restype = [ctypes.POINTER(_Question)], ctypes.c_int

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
        return self._over_vocabulary(torch.empty(len(hidden)), hidden, head, soft_cap)

    def vocabulary_logits(self, hidden: Tensor, head: Tensor, soft_cap: float | None) -> Tensor:
        """See :meth:`kernels.api.KernelSet.vocabulary_logits`; as for :meth:`log_sum_exp`."""
        return self._over_vocabulary(torch.empty(len(hidden), len(head)), hidden, head, soft_cap)

    def _over_vocabulary(self, out: Tensor, hidden: Tensor, head: Tensor, soft_cap: float | None) -> Tensor:
        question = _Question(
            *(tensor.data_ptr() for tensor in (hidden, head, out)),
            len(hidden), *head.shape, out.dim() == 2, soft_cap or 0.0,
        )  # fmt: skip
        if self._ask(ctypes.byref(question)):
            raise MemoryError("a thread found no memory for the workspace of the head")
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
    """Compare on sizes that are no multiple of a tile."""
    rng = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).bfloat16()

    x, weight, bias = random(37, 70), random(50, 70) / 8, random(50).float()
    plain = linear.run(x, linear.pack(weight), 50, bias=bias)
    stream, norm, gate_up, down = random(37, 70).float(), random(70).float(), random(96, 70) / 8, random(70, 48) / 7
    h = F.rms_norm(stream + x.float(), (70,), norm, 1e-5).bfloat16().float()
    gate, up = (h @ gate_up.float().T).chunk(2, dim=-1)
    wanted = (F.silu(gate) * up).bfloat16().float() @ down.float().T
    packed = linear.pack(gate_up, gated=True), linear.pack(down)
    got = linear.run(
        x, packed[0], 70, stream=stream, norm=norm, eps=1e-5, second=packed[1], inner=48, activation="silu"
    )
    hidden, head = stream, random(1100, 70)
    sums = linear.log_sum_exp(hidden, head, None), (hidden @ head.float().T).logsumexp(-1)
    pairs = (plain, F.linear(x.float(), weight.float(), bias)), (got, wanted), sums
    return all(torch.allclose(one.float(), other, rtol=_TOLERANCE, atol=_TOLERANCE) for one, other in pairs)
