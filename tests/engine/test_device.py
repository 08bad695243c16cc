"""What stops the start: no device, one that is too old or too small, a setting that it cannot follow."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import engine.device
from engine.config import EngineConfig
from engine.device import find_device, find_kernels, move_weights, pool_dtype
from engine.errors import DeviceError
from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from tests.helpers.tiny import tiny_checkpoint, tiny_config

CPU = torch.device("cpu")
CUDA = EngineConfig(device="cuda")


def pretend(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """A CUDA device with these answers."""

    def answer(value: Any) -> Any:
        return lambda *_: value

    values = {"is_available": True, "get_device_name": "Toy 1000", "get_device_capability": (9, 0), **facts}
    for name, value in values.items():
        monkeypatch.setattr(torch.cuda, name, answer(value))


def test_a_cpu_is_always_there() -> None:
    assert find_device(EngineConfig()) == CPU


def test_no_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, is_available=False)

    with pytest.raises(DeviceError, match="'cuda' was asked for, but PyTorch finds no CUDA device"):
        find_device(CUDA)


def test_an_old_device_is_refused_with_its_name_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, get_device_capability=(7, 5))

    with pytest.raises(DeviceError, match=r"Toy 1000 has compute capability 7\.5; 8\.0 or newer is needed"):
        find_device(CUDA)


def test_weights_that_do_not_fit_are_refused_with_what_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    pretend(monkeypatch, mem_get_info=(5, 1000))
    weights = tiny_checkpoint(tiny_config()).weights
    monkeypatch.setattr(type(weights), "to", full)

    with pytest.raises(DeviceError, match="the weights do not fit Toy 1000: 5 of 1000 bytes were left"):
        move_weights(weights, torch.device("cuda"))


class Set8(ReferenceKernels):
    """A kernel set that holds int8 alone, as Triton's does before sm_89."""

    name = "old"
    code_dtypes = frozenset({torch.int8})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_codes_that_a_device_cannot_hold_are_refused_with_what_it_can(
    monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    def load(_name: str, _device: torch.device) -> KernelSet:
        return Set8()

    pretend(monkeypatch)
    monkeypatch.setattr(engine.device, "load_kernels", load)
    here = "Toy 1000" if device == "cuda" else "device 'cpu'"

    find_kernels(EngineConfig(device=device, kv_dtype="int8"), torch.device(device))
    with pytest.raises(
        DeviceError, match=f"kv_dtype 'fp8' is not possible with kernels 'old' on {here}; 'auto' is, and 'int8'"
    ):
        find_kernels(EngineConfig(device=device, kv_dtype="fp8"), torch.device(device))


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8"])
def test_sets_for_a_cpu_hold_every_kind(kernels: Any, kv_dtype: Any) -> None:
    find_kernels(EngineConfig(kernels=kernels, kv_dtype=kv_dtype), CPU)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_name: str, _device: torch.device) -> KernelSet:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(engine.device, "load_kernels", load)

    with pytest.raises(DeviceError, match="kernels 'triton' need the package 'triton', which is not installed"):
        find_kernels(CUDA, torch.device("cuda"))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_on_a_cpu_is_refused_unless_it_is_interpreted() -> None:
    with pytest.raises(DeviceError, match="a CUDA device wanted, got cpu without TRITON_INTERPRET=1"):
        find_kernels(EngineConfig(kernels="triton"), CPU)


@pytest.mark.parametrize(
    ("kv_dtype", "dtype"), [("auto", torch.bfloat16), ("int8", torch.int8), ("fp8", torch.float8_e4m3fn)]
)
def test_the_pool_holds_what_was_asked_for(kv_dtype: Any, dtype: torch.dtype) -> None:
    assert pool_dtype(EngineConfig(kv_dtype=kv_dtype)) == dtype
