"""The tensor operations of a decoder step, each with a plain judge.

Sets that implement one contract (:class:`kernels.api.KernelSet`): ``cpu`` is tuned for a
CPU, ``reference`` is the float32 judge.
"""

from kernels.api import KernelSet


def load_kernels(name: str) -> KernelSet:
    """The kernel set called ``name``; only that set is imported.

    Raises:
        ValueError: no set has that name.
    """
    match name:
        case "cpu":
            from kernels.cpu import CpuKernels  # noqa: PLC0415  a set may need what another machine lacks

            return CpuKernels()
        case "reference":
            from kernels.reference import ReferenceKernels  # noqa: PLC0415

            return ReferenceKernels()
    raise ValueError(f"no kernel set is called {name!r}; there are 'cpu' and 'reference'")
