"""Tells an error that the device survives from one after which every call to it fails."""

from __future__ import annotations

import torch

_LOST = frozenset({
    214,  # cudaErrorECCUncorrectable
    220,  # cudaErrorNvlinkUncorrectable
    700,  # cudaErrorIllegalAddress
    702,  # cudaErrorLaunchTimeout
    709,  # cudaErrorContextIsDestroyed
    710,  # cudaErrorAssert
    714,  # cudaErrorHardwareStackError
    715,  # cudaErrorIllegalInstruction
    716,  # cudaErrorMisalignedAddress
    717,  # cudaErrorInvalidAddressSpace
    718,  # cudaErrorInvalidPc
    719,  # cudaErrorLaunchFailure
})  # fmt: skip
"""Codes of the CUDA runtime that leave "the process in an inconsistent state", in its manual's words."""


class DeviceLost(RuntimeError):
    """Nothing can be computed on the device by this process any more."""


def is_device_lost(device: torch.device, error: BaseException) -> bool:
    """Whether ``error``, which a step on ``device`` raised, is one that only a new process gets over.

    A CUDA device is asked whether it can still finish what it was given, for most errors do not say where they
    come from: waits for it. Memory that ran out is no loss by itself.
    """
    if getattr(error, "error_code", None) in _LOST:  # of torch.AcceleratorError, which older versions do not have
        return True
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
