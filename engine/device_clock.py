"""How long a device worked on something, without making the host wait for it."""

from __future__ import annotations

import time

import torch


class DeviceClock:
    """Measures one stretch of work at a time, on the current stream of a CUDA device or on the CPU.

    A CUDA device works behind the host's back, so its own events are read, and only after the
    host has waited for the work for another reason.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = _Events() if device.type == "cuda" else None
        self._began = self._ended = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()
        if self._events is not None:
            self._events.begin.record()

    def stop(self) -> None:
        self._ended = time.perf_counter()
        if self._events is not None:
            self._events.end.record()

    def seconds(self) -> float:
        """From ``start`` to ``stop``; the host's time where the device has not come that far."""
        if self._events is not None and self._events.end.query():  # type: ignore[no-untyped-call]
            return float(self._events.begin.elapsed_time(self._events.end)) * 1e-3
        return self._ended - self._began


class _Events:
    def __init__(self) -> None:
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
