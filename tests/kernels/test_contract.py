"""The contract on the sets that run on every machine."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from kernels.api import KernelSet
from kernels.cpu import CpuKernels
from kernels.native import NativeOps, build, build_library, load_native_ops
from kernels.native.attention import load_native_attention
from kernels.reference import ReferenceKernels
from tests.kernels.contract import KernelContract


class TestReference(KernelContract):
    kernels: ClassVar[KernelSet] = ReferenceKernels()
    dtypes = (torch.float32, torch.bfloat16)


class TestCpu(KernelContract):
    kernels: ClassVar[KernelSet] = CpuKernels()
    dtypes = (torch.float32, torch.bfloat16)


NATIVE = load_native_ops()
FOLDER = Path(tempfile.gettempdir()) / "radix-scorer-tests"


def built_for(name: str) -> NativeOps | None:
    """The library for one of the levels that this processor has."""
    level = next((level for level in build.processor_levels() if level.name == name), None)
    compiler = build.find_compiler()
    if level is None or compiler is None:
        return None
    FOLDER.mkdir(exist_ok=True)
    library = ctypes.CDLL(str(build_library(FOLDER, level, compiler)))
    return NativeOps(library, load_native_attention(library))


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
