from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engine.config import EngineConfig

RANGES = [
    ("block_size", 1, 1024),
    ("step_tokens", 16, 1_048_576),
    ("max_queued_tokens", 1, 1 << 40),
    ("pool_bytes", 1, 1 << 50),
    ("max_row_tokens", 1, 1 << 24),
    ("num_threads", 1, 1024),
]


def config(**values: Any) -> EngineConfig:
    return EngineConfig(**values)


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_the_ends_of_a_range_are_in_it(name: str, low: int, high: int) -> None:
    assert getattr(config(**{name: low}), name) == low
    assert getattr(config(**{name: high}), name) == high


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_what_is_out_of_range_is_refused_with_name_value_and_range(name: str, low: int, high: int) -> None:
    for value in (low - 1, high + 1, -1):
        with pytest.raises(ValueError, match=f"^{name} is {value}; it must be between {low} and {high}$"):
            config(**{name: value})


@pytest.mark.parametrize("size", [0, -1])
def test_b019_a_block_has_at_least_one_position(size: int) -> None:
    with pytest.raises(ValueError, match=f"^block_size is {size}; it must be between 1 and 1024$"):
        config(block_size=size)


@pytest.mark.parametrize("name", ["pool_bytes", "max_row_tokens", "num_threads"])
def test_what_is_derived_may_be_left_open(name: str) -> None:
    assert getattr(config(**{name: None}), name) is None


def test_every_number_has_a_range() -> None:
    numbers = {field.name for field in dataclasses.fields(EngineConfig) if str(field.type).startswith("int")}

    assert numbers == {name for name, _, _ in RANGES}


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_a_kernel_set_of_the_cpu_does_not_run_on_cuda(kernels: str) -> None:
    with pytest.raises(ValueError, match=f"kernels '{kernels}' do not run on device 'cuda'"):
        config(device="cuda", kernels=kernels)


def test_is_never_written_to() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().block_size = 4  # type: ignore[misc]
