"""The contract on the sets that run on every machine."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from kernels.api import KernelSet
from kernels.cpu import CpuKernels
from kernels.native import load_native_ops
from kernels.reference import ReferenceKernels
from tests.kernels.contract import KernelContract


class TestReference(KernelContract):
    kernels: ClassVar[KernelSet] = ReferenceKernels()
    dtypes = (torch.float32, torch.bfloat16)


class TestCpu(KernelContract):
    kernels: ClassVar[KernelSet] = CpuKernels()
    dtypes = (torch.float32, torch.bfloat16)


NATIVE = load_native_ops()


@pytest.mark.skipif(NATIVE is None, reason="no C compiler here: the native operations cannot be built")
class TestCpuNative(KernelContract):
    kernels: ClassVar[KernelSet] = CpuKernels(NATIVE)
    dtypes = (torch.bfloat16,)
