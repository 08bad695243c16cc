"""Linear layers in 8 bits on a CPU without AMX: int8 weights, and int8 inputs scaled row by row as they come.

``y = (q @ w.T) * row_scale * channel_scale``, where ``q`` is a row of the turned ``x`` over its
``row_scale``, ``w`` a row of the turned weight over its ``channel_scale``, both rounded to whole
numbers up to 127 (symmetric, Jacob et al. 2018). Sums are exact 32-bit integers. As in
:mod:`kernels.packed_linear`, the operations are private to PyTorch and compared before use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.native import NativeOps
from kernels.turning import turn_rows

LARGEST_CODE = 127
# a row of zeros has any scale
_LEAST_SCALE = 1e-30
_ROWS_HINT = 256
# results are rounded to bfloat16 twice: after the sum, and after the row's scale; so are turned inputs
_TOLERANCE = 2.0**-6


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes ``[n, k]`` int8 and scales ``[n]`` float32 of the rows of ``x``, any float dtype."""
    wide = x.float()
    scales = (wide.abs().amax(dim=-1) / LARGEST_CODE).clamp_min(_LEAST_SCALE)
    return (wide / scales[:, None]).round().to(torch.int8), scales


class Int8Linear:
    """``x @ weight.T`` for bfloat16 ``x``, rounded as the module says; holds its own codes of the weight."""

    def __init__(self, weight: Tensor, native: NativeOps | None) -> None:
        codes, self._scales = quantise_rows(turn_rows(weight.float()))
        self._codes = torch.ops.onednn.qlinear_prepack(codes, [_ROWS_HINT, codes.shape[1]])
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._native = native

    def __call__(self, x: Tensor) -> Tensor:
        quantise = quantise_rows if self._native is None else self._native.quantise_rows
        codes, scales = quantise(turn_rows(x))
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, 0, self._codes, self._scales, self._zeros, None, 1.0, 0, torch.bfloat16, "none", [], ""
        )
        if self._native is not None:
            return self._native.scale_rows(out, scales)
        return (out.float() * scales[:, None]).to(x.dtype)


def int8_linear_works(native: NativeOps | None) -> bool:
    """Whether the private operations exist here and agree with whole-number products."""
    rng = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 70, generator=rng).bfloat16() for rows in (48, 5))
    try:
        got = Int8Linear(weight, native)(x)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    (codes, scales), (weight_codes, weight_scales) = (
        quantise_rows(turn_rows(x)),
        quantise_rows(turn_rows(weight.float())),
    )
    exact = codes.double() @ weight_codes.double().T * scales[:, None] * weight_scales
    return torch.allclose(got.double(), exact, rtol=_TOLERANCE, atol=_TOLERANCE * float(exact.abs().max()))
