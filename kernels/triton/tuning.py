"""Launch constants as data; a shape is looked up, and nothing is tuned while a request waits.

The tables are in ``launches/``. That of ``compiled.toml`` was chosen by compiling, not by timing: no
row spills a register on the architectures it serves (``python -m kernels.triton.report`` shows
and a test asserts it), and bulk rows reach the widest matrix instruction. ``python -m
benchmarks.gpu.tune`` writes one beside it for the device that it runs on, which comes first.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernels.api import KernelInputError

INTERPRETED = 0
"""The architecture of a process that interprets kernels on the CPU."""

FOLDER = Path(__file__).parent / "launches"
COMPILED = "compiled.toml"

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
    min_head_dim: int = 1
    group: int | None = None
    max_arch: int | None = None
    element_bytes: int = 2
    max_rows: int | None = None
    max_span: int | None = None
    quantised: bool | None = None

    def serves(self, key: LaunchKey) -> bool:
        return (
            self.min_arch <= key.arch
            and (self.max_arch is None or key.arch <= self.max_arch)
            and self.min_head_dim <= key.head_dim <= self.max_head_dim
            and self.group in {None, key.group}
            and key.element_bytes == self.element_bytes
            and (self.max_rows is None or key.rows <= self.max_rows)
            and (self.max_span is None or key.longest_span <= self.max_span)
            and self.quantised in {None, key.quantised}
            and key.group <= self.launch.tile_rows
        )


def load_rules(folder: Path) -> tuple[Rule, ...]:
    """The rules of every table in ``folder``: those measured on a device first, then those that were compiled.

    Raises:
        ValueError: a table has a field that no rule has, or lacks one.
    """
    tables = sorted(folder.glob("*.toml"), key=lambda path: (path.name == COMPILED, path.name))
    return tuple(
        _rule(entry, path) for path in tables for entry in tomllib.loads(path.read_text(encoding="utf-8"))["rule"]
    )


def _rule(entry: dict[str, Any], path: Path) -> Rule:
    try:
        rows, keys, warps, stages = entry["launch"]
        launch = Launch(tile_rows=rows, tile_keys=keys, num_warps=warps, num_stages=stages)
        return Rule(**{**entry, "launch": launch})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {entry} is no rule: {error}") from error


RULES = load_rules(FOLDER)


def choose_launch(key: LaunchKey, rules: Sequence[Rule] = RULES) -> Launch:
    """The launch of the first rule that serves ``key``.

    Raises:
        KernelInputError: none does: the head size, group or dtype is not supported there.
    """
    for rule in rules:
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
