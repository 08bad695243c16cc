"""The contract on the sets that run on every machine."""

from __future__ import annotations

import importlib
import importlib.util
from typing import ClassVar

import pytest
import torch

from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from tests.kernels.contract import KernelContract


class TestReference(KernelContract):
    kernels: ClassVar[KernelSet] = ReferenceKernels()
    dtypes = (torch.float32, torch.bfloat16)


@pytest.mark.skipif(importlib.util.find_spec("kernels.cpu") is None, reason="kernels.cpu is not there")
class TestCpu(KernelContract):
    dtypes = (torch.float32, torch.bfloat16)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def make_kernels(cls) -> None:
        cls.kernels = importlib.import_module("kernels.cpu").CpuKernels()
