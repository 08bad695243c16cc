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
from tests.kernels.libraries import built_for


class TestReference(KernelContract):
    kernels: ClassVar[KernelSet] = ReferenceKernels()
    dtypes = (torch.float32, torch.bfloat16)


class TestCpu(KernelContract):
    kernels: ClassVar[KernelSet] = CpuKernels()
    dtypes = (torch.float32, torch.bfloat16)


NATIVE = load_native_ops()
WITHOUT_TILES = built_for("x86-64-v4-bf16")
WITHOUT_ATTENTION = built_for("x86-64-v3")


@pytest.mark.skipif(NATIVE is None, reason="no C compiler here: the native operations cannot be built")
class TestCpuNative(KernelContract):
    kernels: ClassVar[KernelSet] = CpuKernels(NATIVE)
    dtypes = (torch.bfloat16,)


@pytest.mark.skipif(WITHOUT_TILES is None, reason="no AVX512-BF16 or no C compiler here")
class TestCpuWithoutTiles(KernelContract):
    """AVX512-BF16 alone, as on processors that lack AMX."""

    kernels: ClassVar[KernelSet] = CpuKernels(WITHOUT_TILES)
    dtypes = (torch.bfloat16,)

    def test_attention_is_the_native_one(self) -> None:
        assert WITHOUT_TILES is not None
        assert WITHOUT_TILES.attention is not None


@pytest.mark.skipif(WITHOUT_ATTENTION is None, reason="not an x86-64-v3 processor or no C compiler here")
class TestCpuWithoutNativeAttention(KernelContract):
    """PyTorch's attention with native merging, as on processors without AVX512-BF16."""

    kernels: ClassVar[KernelSet] = CpuKernels(WITHOUT_ATTENTION)
    dtypes = (torch.bfloat16,)

    def test_attention_is_not_the_native_one(self) -> None:
        assert WITHOUT_ATTENTION is not None
        assert WITHOUT_ATTENTION.attention is None
