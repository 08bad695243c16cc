"""The contract on the Triton set, interpreted (bfloat16 is wrong there, so float16 stands in)."""

from __future__ import annotations

from typing import ClassVar

import torch

from kernels.api import KernelSet
from kernels.triton import TritonKernels
from tests.kernels.contract import KernelContract


class TestTriton(KernelContract):
    kernels: ClassVar[KernelSet] = TritonKernels("cpu")
    dtypes = (torch.float32, torch.float16)
    rounds_float8 = False  # the interpreter loses the carry: 127.99 becomes 64
