"""The tensor operations of a decoder step, each with a plain judge.

Sets that implement one contract (:class:`kernels.api.KernelSet`): ``triton`` for NVIDIA
GPUs, ``cpu`` tuned for a CPU, ``reference`` the float32 judge.
"""

import torch

from kernels.api import KernelSet


def load_kernels(name: str, device: torch.device) -> KernelSet:
    """The kernel set called ``name``, for tensors on ``device``; only that set is imported.

    Raises:
        ValueError: no set has that name.
    """
    match name:
        case "cpu":
            from kernels.cpu import CpuKernels  # noqa: PLC0415  a set may need what another machine lacks
            from kernels.native import load_native_ops  # noqa: PLC0415

            return CpuKernels(load_native_ops())
        case "reference":
            from kernels.reference import ReferenceKernels  # noqa: PLC0415

            return ReferenceKernels()
        case "triton":
            from kernels.triton import TritonKernels  # noqa: PLC0415

            return TritonKernels(device)
    raise ValueError(f"no kernel set is called {name!r}; there are 'cpu', 'triton' and 'reference'")
