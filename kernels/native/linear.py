"""The linear layers of ``linear.c`` and the head of ``vocabulary.c`` as operations on tensors."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import checks
from kernels.api import Activation, LinearOp, SublayerOp
from kernels.native.linear_parts import GATES, TILE, LayerParts, LayerStruct, PackedWeight, coding_of
from kernels.weights import CODED_INPUTS, CodedWeight, Weight, dense

_LOG = logging.getLogger(__name__)

# results are rounded to bfloat16 once; the inside of a feed-forward part and its normed input too
_TOLERANCE = 2.0**-6
# absolute, of logits and their log-sum-exp: hidden states keep 16 bits in the product with the head
_HEAD_TOLERANCE = 2.0**-12


class _Question(ctypes.Structure):
    """``question`` of the C source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "head", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "vocabulary", "width", "whole")),
        ("soft_cap", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PlainLayer:
    """A linear layer; see :data:`kernels.api.LinearOp`."""

    linear: NativeLinear
    parts: LayerParts

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear.run(x, self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class StreamLayer:
    """A layer that begins with the residual stream; see :data:`kernels.api.SublayerOp`."""

    linear: NativeLinear
    parts: LayerParts

    def __call__(self, stream: Tensor, update: Tensor) -> Tensor:
        assert self.parts.norm is not None, "it was packed with a norm"
        checks.check_add_rms_norm(stream, update, self.parts.norm)
        return self.linear.run(update, self.parts, stream)


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
        self._run.argtypes, self._run.restype = [ctypes.POINTER(LayerStruct)], ctypes.c_int
        self._pack.argtypes, self._pack.restype = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3, None
        self._pack_codes = library.pack_codes
        self._pack_codes.argtypes, self._pack_codes.restype = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 4, None
        self._ask = library.run_vocabulary
        self._ask.argtypes, self._ask.restype = [ctypes.POINTER(_Question)], ctypes.c_int

    def layer(self, weight: Weight, bias: Tensor | None = None) -> LinearOp:
        """See :meth:`kernels.api.KernelSet.pack_linear`; ``weight`` is bfloat16. Holds a packed copy.

        What is given raises MemoryError where a thread found no memory to work in.
        """
        width, inputs = weight.shape
        bias = None if bias is None else bias.float()
        parts = LayerParts(first=self._packed(weight), inputs=inputs, width=width, bias=bias)
        return PlainLayer(self, parts)

    def normed_layer(self, norm: Tensor, eps: float, weight: Weight, bias: Tensor | None = None) -> SublayerOp:
        """See :meth:`kernels.api.KernelSet.pack_normed_linear`; as for :meth:`layer`."""
        (width, inputs), norm = weight.shape, norm.float()
        bias = None if bias is None else bias.float()
        parts = LayerParts(first=self._packed(weight), inputs=inputs, width=width, bias=bias, norm=norm, eps=eps)
        return StreamLayer(self, parts)

    def feed_forward(
        self, norm: Tensor, eps: float, gate_up: Weight, down: Weight, activation: Activation
    ) -> SublayerOp:
        """See :meth:`kernels.api.KernelSet.pack_feed_forward`; as for :meth:`layer`."""
        (width, inner), norm = down.shape, norm.float()
        parts = LayerParts(
            first=self._packed(gate_up, gated=True), inputs=width, width=width, norm=norm, eps=eps,
            second=self._packed(down), inner=inner, gate=GATES[activation],
        )  # fmt: skip
        return StreamLayer(self, parts)

    def _packed(self, weight: Weight, *, gated: bool = False) -> PackedWeight:
        """``weight`` [out, in] in the layout of the product; ``gated``: it is gate and up, gate first."""
        rows, inputs = weight.shape
        panels = _rounded_up(rows // 2) * 2 // TILE if gated else _rounded_up(rows) // TILE
        steps = panels * (_rounded_up(inputs) // CODED_INPUTS)
        if isinstance(weight, CodedWeight):
            coding, step_bytes = coding_of(weight)
            packed = PackedWeight(torch.empty(steps * step_bytes, dtype=torch.uint8), coding)
            parts = [part.contiguous() for part in (weight.codes, weight.scales, weight.offsets)]
            pointers = [part.data_ptr() for part in (*parts, packed.memory)]
            self._pack_codes(*pointers, rows, inputs, gated, coding)
        else:
            numbers = weight.contiguous()
            packed = PackedWeight(torch.empty(steps * TILE * CODED_INPUTS, dtype=weight.dtype))
            self._pack(numbers.data_ptr(), packed.memory.data_ptr(), rows, inputs, gated)
        return packed

    def run(self, x: Tensor, parts: LayerParts, stream: Tensor | None = None) -> Tensor:
        """A layer of ``x``, or of the norm of ``stream`` once ``x`` is added to that."""
        checks.check_linear_input(x, parts.inputs, torch.bfloat16)
        rows = x.shape[0]
        out = torch.empty(rows, parts.width, dtype=torch.bfloat16)
        layer = LayerStruct.from_buffer_copy(parts.prepared)
        layer.x, layer.out, layer.rows, layer.x_stride = x.data_ptr(), out.data_ptr(), rows, x.stride(0)
        if stream is not None:
            layer.stream = stream.data_ptr()
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
    if wrong := _disagreements(linear):
        _LOG.warning("native %s disagree with PyTorch on this processor; none is used", " and ".join(wrong))
        return None
    return linear


def _rounded_up(extent: int) -> int:
    return -(-extent // TILE) * TILE


def _disagreements(linear: NativeLinear) -> list[str]:
    """What is wrong. Sizes are no multiple of a tile, rows are few and more than threads share."""
    right = {
        "linear layers": _layer_agrees(linear),
        "layers of coded weights": _codes_agree(linear),
        "feed-forward parts": all(_feed_forward_agrees(linear, gate) for gate in GATES),
        "logits of the head": _head_agrees(linear),
    }
    return [name for name, agrees in right.items() if not agrees]


def _layer_agrees(linear: NativeLinear) -> bool:
    """With more inputs than are added up at once; a row among many has the bits that it has among few."""
    random = _Random()
    x, weight, bias = random(300, 870), random(50, 870) / 32, random(50).float()
    layer = linear.layer(weight, bias)
    got = layer(x)
    return torch.equal(got[263:], layer(x[263:])) and _close(got, F.linear(x.float(), weight.float(), bias))


def _feed_forward_agrees(linear: NativeLinear, activation: Activation) -> bool:
    random = _Random()
    x, stream, norm = random(37, 70), random(37, 70).float(), random(70).float()
    gate_up, down, eps = random(96, 70) / 8, random(70, 48) / 7, 0.5
    grown = stream + x.float()
    gate, up = (F.rms_norm(grown, (70,), norm, eps).bfloat16().float() @ gate_up.float().T).chunk(2, dim=-1)
    opened = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    wanted = (opened * up).bfloat16().float() @ down.float().T
    got = linear.feed_forward(norm, eps, gate_up, down, activation)(stream, x)
    return torch.equal(stream, grown) and _close(got, wanted)


def _codes_agree(linear: NativeLinear) -> bool:
    """Bit for bit with layers of the same numbers, for each way that rows go: one tile, two, groups, blocks."""
    random = _Random()
    x, stream, norm, bias = random(140, 864), random(140, 864).float(), random(864).float(), random(50)
    for bits, wide in ((4, False), (4, True), (8, False), (8, True)):
        plain, gate_up, down = (
            random.coded(*shape, bits=bits, wide=wide) for shape in ((50, 864), (192, 864), (864, 96))
        )
        layers = [linear.layer(weight, bias) for weight in (plain, dense(plain))]
        wholes = [
            linear.feed_forward(norm, 0.5, first, second, "silu")
            for first, second in ((gate_up, down), (dense(gate_up), dense(down)))
        ]
        for rows in (5, 20, 50, 140):
            got, wanted = (layer(x[:rows]) for layer in layers)
            got_whole, wanted_whole = (whole(stream[:rows].clone(), x[:rows]) for whole in wholes)
            if not (torch.equal(got, wanted) and torch.equal(got_whole, wanted_whole)):
                return False
    return True


def _head_agrees(linear: NativeLinear) -> bool:
    """So closely that the low half of a hidden state shows.

    In float64: when threads call MKL's tanh for the first time in a process, at times one of them gets a poor one, in
    float32 right to 14 bits, and now and then a start would find fault with what is sound.
    """
    random = _Random()
    hidden, head = random(37, 70).float() * 1.001, random(1100, 70) / 4
    logits = (hidden @ head.float().T).double()
    capped = 5.0 * (logits / 5.0).tanh()
    pairs = (
        (linear.log_sum_exp(hidden, head, None), logits.logsumexp(-1)),
        (linear.log_sum_exp(hidden, head, 5.0), capped.logsumexp(-1)),
        (linear.vocabulary_logits(hidden, head, 5.0), capped),
    )
    return all(torch.allclose(got.double(), wanted, rtol=0.0, atol=_HEAD_TOLERANCE) for got, wanted in pairs)


def _close(got: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(got.float(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)


class _Random:
    """Standard normal numbers in bfloat16, the same in every process."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).bfloat16()

    def coded(self, rows: int, inputs: int, *, bits: int, wide: bool) -> CodedWeight:
        """Codes of all values; ``wide``: scales and offsets are small multiples of what fits 16 bits."""
        least, most = (0, 16) if bits == 4 else (-128, 128)
        codes = torch.randint(least, most, (rows, inputs), generator=self._generator, dtype=torch.int8)
        scales, offsets = self(2, rows, inputs // CODED_INPUTS).mul_(0.01 / most).half().float() * (63 if wide else 1)
        return CodedWeight(codes=codes, scales=scales, offsets=offsets, bits=bits, dtype=torch.bfloat16)
