"""Launch constants as data; a shape is looked up, and nothing is tuned while a request waits.

The rows were chosen by compiling, not by timing: no row spills a register on the
architectures it serves (``python -m kernels.triton.report`` shows and a test asserts it),
and bulk rows reach the widest matrix instruction. ``python -m benchmarks.gpu`` is the way to
replace a row by one that was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.api import KernelInputError

INTERPRETED = 0
"""The architecture of a process that interprets kernels on the CPU."""

FLOAT8_ARCH = 89
"""The first architecture that converts 8-bit floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Constants of one attention launch.

    Args:
        tile_rows: Packed rows of a program: tokens times query heads of a KV head.
        tile_keys: Keys per iteration.
    """

    tile_rows: int
    tile_keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchKey:
    """What a launch is looked up by.

    Args:
        arch: Compute capability, major * 10 + minor; :data:`INTERPRETED` without a device.
        group: Query heads per KV head.
        rows: Query tokens of the step times ``group``.
        longest_span: Keys of the longest span of the step.
        quantised: Whether the pool holds 8-bit codes, which a kernel widens in registers.
    """

    arch: int
    head_dim: int
    element_bytes: int
    group: int
    rows: int
    longest_span: int
    quantised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Serves the keys within its bounds; None bounds nothing."""

    min_arch: int
    max_head_dim: int
    launch: Launch
    max_arch: int | None = None
    element_bytes: int = 2
    max_rows: int | None = None
    max_span: int | None = None
    quantised: bool | None = None

    def serves(self, key: LaunchKey) -> bool:
        return (
            self.min_arch <= key.arch
            and (self.max_arch is None or key.arch <= self.max_arch)
            and key.head_dim <= self.max_head_dim
            and key.element_bytes == self.element_bytes
            and (self.max_rows is None or key.rows <= self.max_rows)
            and (self.max_span is None or key.longest_span <= self.max_span)
            and self.quantised in {None, key.quantised}
            and key.group <= self.launch.tile_rows
        )


def _launch(tile_rows: int, tile_keys: int, num_warps: int, num_stages: int) -> Launch:
    return Launch(tile_rows=tile_rows, tile_keys=tile_keys, num_warps=num_warps, num_stages=num_stages)


_FEW_ROWS = 32  # latency decides: a tile of 16 rows wastes least, though it misses wgmma
_SOME_ROWS = 1024  # 64-row tiles fill the device earlier, two of them per multiprocessor
_SHORT_SPAN = 256  # little to walk: the masked own rows dominate, and waste less in 64 rows

RULES = (
    # consumer parts (sm_86, 89, 120) have 99 KiB of shared memory, so they and sm_80 share rows
    Rule(min_arch=120, max_head_dim=256, max_rows=_FEW_ROWS, launch=_launch(16, 32, 4, 3)),
    Rule(min_arch=120, max_head_dim=128, quantised=True, launch=_launch(64, 32, 8, 3)),
    Rule(min_arch=120, max_head_dim=64, launch=_launch(128, 64, 8, 3)),
    Rule(min_arch=120, max_head_dim=128, launch=_launch(64, 64, 8, 3)),
    Rule(min_arch=120, max_head_dim=256, launch=_launch(32, 32, 8, 2)),
    Rule(min_arch=100, max_head_dim=256, max_rows=_FEW_ROWS, launch=_launch(16, 32, 4, 3)),
    Rule(min_arch=100, max_head_dim=128, quantised=True, launch=_launch(64, 64, 8, 3)),
    Rule(min_arch=100, max_head_dim=128, max_rows=_SOME_ROWS, launch=_launch(64, 64, 8, 3)),
    Rule(min_arch=100, max_head_dim=128, max_span=_SHORT_SPAN, launch=_launch(64, 64, 8, 3)),
    Rule(min_arch=100, max_head_dim=128, launch=_launch(128, 64, 8, 3)),
    Rule(min_arch=100, max_head_dim=256, launch=_launch(64, 32, 8, 3)),
    Rule(min_arch=90, max_head_dim=256, max_rows=_FEW_ROWS, launch=_launch(16, 32, 4, 3)),
    Rule(min_arch=90, max_head_dim=128, max_rows=_SOME_ROWS, launch=_launch(64, 64, 4, 3)),
    Rule(min_arch=90, max_head_dim=128, max_span=_SHORT_SPAN, launch=_launch(64, 64, 4, 3)),
    Rule(min_arch=90, max_head_dim=128, launch=_launch(128, 64, 8, 3)),
    Rule(min_arch=90, max_head_dim=256, quantised=True, launch=_launch(32, 32, 8, 2)),
    Rule(min_arch=90, max_head_dim=256, launch=_launch(64, 32, 8, 3)),
    Rule(min_arch=80, max_head_dim=256, max_rows=_FEW_ROWS, launch=_launch(16, 32, 4, 3)),
    Rule(min_arch=80, max_head_dim=128, quantised=True, launch=_launch(64, 32, 8, 3)),
    Rule(min_arch=80, max_head_dim=64, launch=_launch(128, 64, 8, 3)),
    Rule(min_arch=80, max_head_dim=128, launch=_launch(64, 64, 8, 3)),
    Rule(min_arch=80, max_head_dim=256, launch=_launch(32, 32, 8, 2)),
    # float32 judges and never serves: exact products on the scalar units
    Rule(min_arch=80, max_head_dim=128, element_bytes=4, launch=_launch(16, 16, 8, 2)),
    Rule(min_arch=80, max_head_dim=256, element_bytes=4, launch=_launch(16, 16, 4, 2)),
    # interpreted: small enough that tests of a few dozen tokens cross tile borders
    Rule(min_arch=INTERPRETED, max_arch=INTERPRETED, max_head_dim=256, launch=_launch(64, 32, 4, 1)),
    Rule(min_arch=INTERPRETED, max_arch=INTERPRETED, max_head_dim=256, element_bytes=4, launch=_launch(64, 32, 4, 1)),
)


def choose_launch(key: LaunchKey) -> Launch:
    """The launch of the first rule that serves ``key``.

    Raises:
        KernelInputError: none does: the head size, group or dtype is not supported there.
    """
    for rule in RULES:
        if rule.serves(key):
            return rule.launch
    raise KernelInputError(
        f"no attention launch for arch {key.arch}, head size {key.head_dim}, {key.group} query heads per KV head "
        f"and {key.element_bytes}-byte elements; head sizes up to 256 and arch 80 or newer are supported"
    )


def reachable(
    key: LaunchKey, *, max_span: int, choose: Callable[[LaunchKey], Launch] = choose_launch
) -> list[LaunchKey]:
    """One key for every launch that keys like ``key`` can get, of any number of rows and spans up to ``max_span``.

    The bounds of the rules are the only places where the choice changes.
    """
    tokens = sorted({1, *(rule.max_rows // key.group + 1 for rule in RULES if rule.max_rows is not None)})
    spans = sorted({1, *(rule.max_span + 1 for rule in RULES if rule.max_span is not None)})
    found: dict[Launch, LaunchKey] = {}
    for count in tokens:
        for span in spans:
            if span <= max_span:
                asked = replace(key, rows=count * key.group, longest_span=span)
                found.setdefault(choose(asked), asked)
    return list(found.values())


def dot_precision(dtype: torch.dtype) -> str:
    """The ``input_precision`` of dot products: float32 inputs must not be cut to TF32."""
    return "ieee" if dtype == torch.float32 else "tf32"
