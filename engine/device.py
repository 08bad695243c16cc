"""What a device must have before a model is put on it; everything here fails at start, by name."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import DeviceError
from engine.weights import ModelWeights
from kernels import load_kernels
from kernels.api import KernelInputError, KernelSet

_OLDEST_CUDA_MAJOR = 8  # Ampere: the first with bfloat16 matrix units and asynchronous copies
_CODES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def find_device(config: EngineConfig) -> torch.device:
    """The device that ``config`` asks for.

    Raises:
        DeviceError: there is no CUDA device, or it has no bfloat16 matrix units.
    """
    if config.device == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError("device 'cuda' was asked for, but PyTorch finds no CUDA device")
        major, minor = torch.cuda.get_device_capability()
        if major < _OLDEST_CUDA_MAJOR:
            name = torch.cuda.get_device_name()
            raise DeviceError(
                f"{name} has compute capability {major}.{minor}; {_OLDEST_CUDA_MAJOR}.0 or newer is needed"
            )
    return torch.device(config.device)


def find_kernels(config: EngineConfig, device: torch.device) -> KernelSet:
    """The kernel set for ``device``, if it can hold keys and values and multiply as ``config`` asks.

    Raises:
        DeviceError: Triton is not installed or has no device, or the set has no ``kv_dtype`` or
            ``linear_dtype`` of that kind here.
    """
    default = "triton" if device.type == "cuda" else "cpu"
    name = default if config.kernels == "auto" else config.kernels
    try:
        kernels = load_kernels(name, device)
    except ModuleNotFoundError as error:
        raise DeviceError(f"kernels {name!r} need the package {error.name!r}, which is not installed") from error
    except KernelInputError as error:
        raise DeviceError(f"kernels {name!r} cannot run here: {error}") from error
    if config.kv_dtype != "auto" and _CODES[config.kv_dtype] not in kernels.code_dtypes:
        here = torch.cuda.get_device_name(device) if device.type == "cuda" else f"device {device.type!r}"
        raise DeviceError(
            f"kv_dtype {config.kv_dtype!r} is not possible with kernels {kernels.name!r} on {here}; "
            f"'auto' is, and {' and '.join(repr(k) for k, codes in _CODES.items() if codes in kernels.code_dtypes)}"
        )
    if config.linear_dtype == "int8" and not kernels.has_int8:
        raise DeviceError(f"linear_dtype 'int8' is not possible with kernels {kernels.name!r} here; 'auto' is")
    return kernels


def move_weights(weights: ModelWeights, device: torch.device) -> ModelWeights:
    """The weights on ``device``.

    Raises:
        DeviceError: they do not fit its memory.
    """
    try:
        return weights.to(device)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise DeviceError(
            f"the weights do not fit {torch.cuda.get_device_name(device)}: {free} of {total} bytes were left "
            "when the next tensor had no room"
        ) from error


def model_dtype(config: EngineConfig) -> torch.dtype:
    """Type of weights and activations."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[config.dtype]


def pool_dtype(config: EngineConfig) -> torch.dtype:
    """Type of what the KV pool holds: that of the model, or 8-bit codes."""
    return _CODES.get(config.kv_dtype, model_dtype(config))
