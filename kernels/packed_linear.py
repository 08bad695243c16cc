"""bfloat16 linear layers with weights in the layout that oneDNN computes in.

A plain weight is brought into that layout at every call, which costs half of the time for a
step of a few tokens. The operations used are private to PyTorch, so they live here alone and
are compared with the public one before they are used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# without a hint oneDNN may settle on the plain layout (vllm-project/vllm#35890); the layout
# that suits this many rows serves any number
_ROWS_HINT = 256
# results are rounded to bfloat16 once; sums may be taken in another order
_TOLERANCE = 2.0**-6


class PackedLinear:
    """``x @ weight.T + bias`` for bfloat16 ``x`` of any number of rows; holds its own copy of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)  # noqa: SLF001
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            x, self._weight, self._bias, "none", [], ""
        )
        return out


def packing_works() -> bool:
    """Whether the private operations exist here and agree with the public one."""
    rng = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 64, generator=rng).bfloat16() for rows in (48, 5))
    try:
        got = PackedLinear(weight, None)(x)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.allclose(got.float(), F.linear(x, weight).float(), rtol=_TOLERANCE, atol=_TOLERANCE)
