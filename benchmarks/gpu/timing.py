"""Times of calls on a CUDA device, taken in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

WARM_UPS = 20
_CALLS_PER_BLOCK = 10
_FLUSH_BYTES = 256 << 20  # several times the largest L2 there is
_CEILING_SIZE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Milliseconds of one call: of each block the median call, over all blocks."""

    blocks: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.blocks)


def time_in_turns(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, repeats: int, flush: bool
) -> dict[str, Times]:
    """Time the calls A-B-A-B, so that a change of clocks or heat meets all of them.

    Args:
        flush: Push everything out of the L2 cache before each call. A prefix that many rows
            read is in the cache in real use, so the other row counts as well.
    """
    scratch = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(_time_block(call, scratch if flush else None))
    return {name: Times(blocks=tuple(blocks)) for name, blocks in found.items()}


def matmul_ceiling(device: torch.device, dtype: torch.dtype, *, repeats: int) -> float:
    """FLOP/s of a large square product of random matrices: what matrix units reach here."""
    left, right = (torch.randn(_CEILING_SIZE, _CEILING_SIZE, device=device).to(dtype) for _ in range(2))
    times = time_in_turns({"matmul": lambda: left @ right}, device, repeats=repeats, flush=False)
    return 2 * _CEILING_SIZE**3 / (times["matmul"].median * 1e-3)


def _time_block(call: Callable[[], object], scratch: torch.Tensor | None) -> float:
    starts, ends = (
        [torch.cuda.Event(enable_timing=True) for _ in range(_CALLS_PER_BLOCK)]  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    for start, end in zip(starts, ends, strict=True):
        if scratch is not None:
            scratch.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times: list[float] = [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]
    return statistics.median(times)
