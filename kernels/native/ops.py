"""The C functions as operations on tensors, checked against PyTorch before anyone gets them."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.api import LastLayerOps, LayerOps
from kernels.native.attention import NativeAttention, load_native_attention
from kernels.native.build import find_library
from kernels.native.feed_forward8 import NativeFeedForward8, load_feed_forward8
from kernels.native.layers import NativeLayers
from kernels.native.linear import NativeLinear, load_native_linear
from kernels.native.spans import NativeSpanCheck

_LOG = logging.getLogger(__name__)
_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "rms_norm": [_POINTER] * 3 + [_INT] * 4 + [_FLOAT],
    "rms_norm32": [_POINTER] * 3 + [_INT] * 2 + [_FLOAT],
    "add_rms_norm": [_POINTER] * 4 + [_INT] * 3 + [_FLOAT],
    "quantise_rows": [_POINTER] * 3 + [_INT] * 3,
    "scale_rows": [_POINTER] * 2 + [_INT] * 2,
    "swiglu": [_POINTER] * 2 + [_INT] * 2,
    "geglu": [_POINTER] * 2 + [_INT] * 2,
    "rotate": [_POINTER] * 3 + [_INT] * 4,
    "merge": [_POINTER] * 4 + [_INT] * 4,
    "label_logits": [_POINTER] * 4 + [_INT] * 3,
}
# one unit in the last place of bfloat16, relative; results are rounded once
_TOLERANCE = 2.0**-7


class NativeOps:
    """One-pass elementwise operations on bfloat16 CPU tensors.

    Callers have checked shapes and dtypes; memory layout is as each method says.

    Args:
        attention, linear: What the library holds of them; None on a processor that they were not written for.
    """

    def __init__(
        self, library: ctypes.CDLL, attention: NativeAttention | None = None, linear: NativeLinear | None = None
    ) -> None:
        self.attention, self.linear = attention, linear
        self.check_spans = NativeSpanCheck(library)
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._library = library

    @cached_property
    def feed_forward8(self) -> NativeFeedForward8 | None:
        """As ``linear``. Few want it, so it is checked when it is first asked for."""
        return load_feed_forward8(self._library, self.linear)

    def join(self, layers: Sequence[LayerOps], last: LastLayerOps) -> NativeLayers | None:
        """Layers as one operation; None where they are not of this library, or it has nothing for them."""
        if self.attention is None or self.linear is None or not NativeLayers.takes(layers, last):
            return None
        return NativeLayers(self._library, layers, last)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :meth:`kernels.api.KernelSet.rms_norm`; each token of ``x`` is dense, ``weight`` is float32."""
        out = torch.empty(x.shape, dtype=x.dtype)
        heads, width = x.shape[1:] if x.dim() == 3 else (1, x.shape[1])
        self._library.rms_norm(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x) * heads, heads, width, x.stride(0), eps
        )
        return out

    def rms_norm32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The same of float32, to float32; both are dense."""
        out = torch.empty(x.shape)
        self._library.rms_norm32(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
        return out

    def add_rms_norm(self, stream: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :meth:`kernels.api.KernelSet.add_rms_norm`; layouts and ``weight`` as for :meth:`rms_norm`."""
        out = torch.empty(update.shape, dtype=update.dtype)
        rows, width = update.shape
        self._library.add_rms_norm(
            stream.data_ptr(), update.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, update.stride(0), eps
        )
        return out

    def quantise_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See :func:`kernels.int8_linear.quantise_rows`; elements of a row are adjacent.

        A row that is not finite has a scale that is not, and codes of zero.
        """
        rows, width = x.shape
        codes, scales = torch.empty(rows, width, dtype=torch.int8), torch.empty(rows)
        self._library.quantise_rows(x.data_ptr(), codes.data_ptr(), scales.data_ptr(), rows, width, x.stride(0))
        return codes, scales

    def scale_rows(self, y: Tensor, scales: Tensor) -> Tensor:
        """``y * scales[:, None]`` in place; ``y`` is dense, ``scales`` are float32."""
        self._library.scale_rows(y.data_ptr(), scales.data_ptr(), *y.shape)
        return y

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See :meth:`kernels.api.KernelSet.swiglu`; ``gate_up`` is dense."""
        return self._gated(self._library.swiglu, gate_up)

    def geglu(self, gate_up: Tensor) -> Tensor:
        """See :meth:`kernels.api.KernelSet.geglu`; ``gate_up`` is dense."""
        return self._gated(self._library.geglu, gate_up)

    @staticmethod
    def _gated(function: Callable[..., None], gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=gate_up.dtype)
        function(gate_up.data_ptr(), out.data_ptr(), rows, width)
        return out

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See :meth:`kernels.api.KernelSet.rotate`; in place. Heads of a row follow each other, tables are dense."""
        rows, heads, width = x.shape
        self._library.rotate(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), rows, heads, width // 2, x.stride(0))
        return x

    def merge(self, out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
        """Fold ``part`` ``[heads, rows, D]`` (dense bfloat16) into ``out`` (float32, rows dense) in place."""
        heads, rows, width = part.shape
        self._library.merge(
            out.data_ptr(), lse.data_ptr(), part.data_ptr(), part_lse.data_ptr(), heads, rows, width, lse.stride(0)
        )

    def label_logits(self, hidden: Tensor, head: Tensor, label_ids: Tensor) -> Tensor:
        """See :meth:`kernels.api.KernelSet.label_logits`, without a cap; all are dense."""
        logits = torch.empty(label_ids.shape)
        self._library.label_logits(
            hidden.data_ptr(), head.data_ptr(), label_ids.data_ptr(), logits.data_ptr(), *label_ids.shape, head.shape[1]
        )
        return logits


def load_native_ops() -> NativeOps | None:
    """The operations, or None where they cannot be built or do not agree with PyTorch."""
    path = find_library()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        ops = NativeOps(library, load_native_attention(library), load_native_linear(library))
    except (OSError, AttributeError) as error:
        _LOG.warning("%s cannot be loaded: %s", path, error)
        return None
    if not _agrees(ops):
        _LOG.warning("%s disagrees with PyTorch on this processor and is not used", path)
        return None
    return ops


def _agrees(ops: NativeOps) -> bool:
    """Compare on sizes that are no multiple of any vector width."""
    rng = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).bfloat16()

    x, weight = random(5, 77), random(77).float()
    stream = random(5, 77).float()
    grown = stream + x.float()
    heads, angles = random(5, 3, 22), torch.randn(5, 11, generator=rng)
    cos, sin = angles.cos(), angles.sin()
    first, second = heads.float().chunk(2, dim=-1)
    turned = (first * cos[:, None] - second * sin[:, None], second * cos[:, None] + first * sin[:, None])
    gate_up = random(5, 154)
    gate, up = gate_up.float().chunk(2, dim=-1)
    out, lse, part, part_lse = random(3, 7, 22).float(), random(3, 7).float(), random(3, 7, 22), random(3, 7).float()
    total = torch.logaddexp(lse, part_lse)
    merged = out * (lse - total).exp()[..., None] + part.float() * (part_lse - total).exp()[..., None]
    ops.merge(out, lse, part, part_lse)
    codes, scales = ops.quantise_rows(x)
    ids = torch.tensor([[3], [0], [4], [4], [1]])
    pairs = [
        (ops.rms_norm(x, weight, 1e-5), F.rms_norm(x.float(), (77,), weight, 1e-5)),
        (ops.add_rms_norm(stream, x, weight, 1e-5), F.rms_norm(grown, (77,), weight, 1e-5)),
        (stream, grown),
        (ops.rms_norm32(grown, weight, 1e-5), F.rms_norm(grown, (77,), weight, 1e-5)),
        (ops.rotate(heads.clone(), cos, sin), torch.cat(turned, dim=-1)),
        (ops.swiglu(gate_up), F.silu(gate) * up),
        (codes, (x.float() / scales[:, None]).round()),
        (scales, x.float().abs().amax(-1) / 127),
        (ops.scale_rows(x.clone(), scales), x.float() * scales[:, None]),
        (ops.geglu(gate_up), F.gelu(gate, approximate="tanh") * up),
        (ops.rms_norm(heads, weight[:22], 1e-5), F.rms_norm(heads.float(), (22,), weight[:22], 1e-5)),
        (out, merged),
        (lse, total),
        (ops.label_logits(grown, x, ids), (grown * x[ids[:, 0]].float()).sum(-1, keepdim=True)),
    ]
    return all(torch.allclose(got.float(), wanted, rtol=_TOLERANCE, atol=1e-5) for got, wanted in pairs)
