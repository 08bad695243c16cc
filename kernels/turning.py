"""What rows go through before they are rounded to 8 bits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TURNED_INPUTS = 64


def turn_rows(rows: Tensor) -> Tensor:
    """``rows`` ``[n, k]`` with zeros up to a multiple of 64, and each 64 inputs turned by a Hadamard matrix.

    The matrix is that of Sylvester's construction over 8: orthogonal, and exact in any float dtype.
    """
    signs = torch.ones(1, 1, dtype=rows.dtype)
    while len(signs) < TURNED_INPUTS:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    padded = F.pad(rows, (0, -rows.shape[1] % TURNED_INPUTS))
    turned: Tensor = padded.view(-1, TURNED_INPUTS) @ (signs / math.sqrt(TURNED_INPUTS))
    return turned.view(padded.shape)
