"""The contract on the sets that run on every machine."""

from __future__ import annotations

from typing import ClassVar

import torch

from kernels.api import KernelSet
from kernels.cpu import CpuKernels
from kernels.reference import ReferenceKernels
from tests.kernels.contract import KernelContract


class TestReference(KernelContract):
    kernels: ClassVar[KernelSet] = ReferenceKernels()
    dtypes = (torch.float32, torch.bfloat16)


class TestCpu(KernelContract):
    kernels: ClassVar[KernelSet] = CpuKernels()
    dtypes = (torch.float32, torch.bfloat16)
