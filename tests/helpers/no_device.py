"""Triton without a device: launches do nothing, and results are whatever memory held."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget

_DEVICE = 1000  # no real device has such a number, so what is cached for it is ours


class NoDevice:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return _DEVICE + self._arch

    def get_current_stream(self, _device: int) -> int:
        return 0


def launch_nothing(arch: int, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Tell Triton before each compilation that somebody else has done it.

    Returns:
        Name and specialisation of every kernel that is launched from now on.
    """
    found: set[tuple[str, str]] = set()

    def claim(*, key: str, fn: Any, **_: Any) -> bool:
        found.add((fn.name, key))
        return True

    monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice(arch))
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", claim)
    return found
