"""The kernel set for NVIDIA GPUs, written in Triton."""

from kernels.triton.kernel_set import TritonKernels

__all__ = ["TritonKernels"]
