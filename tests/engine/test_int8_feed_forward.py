"""Feed-forward parts in 8 bits: a setting that moves scores a little, and is refused by name where it cannot be."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

import engine.device
from engine.config import EngineConfig
from engine.device import find_kernels
from engine.errors import DeviceError
from engine.records import Row
from kernels.api import KernelSet
from kernels.native import load_native_ops
from kernels.reference import ReferenceKernels
from tests.helpers.plain_model import numbers
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

NATIVE = load_native_ops()
VOCABULARY = 97


def some_rows() -> list[Row]:
    rng = np.random.default_rng(5)
    return [make_row(rng.integers(VOCABULARY, size=n).tolist()) for n in (30, 9, 4, 22)]


def scores(linear_dtype: Literal["auto", "int8"], kernels: Literal["cpu", "reference"]) -> np.ndarray:
    checkpoint = tiny_checkpoint(tiny_config(num_layers=3), dtype=torch.bfloat16)
    with running(tiny_engine(checkpoint, linear_dtype=linear_dtype, kernels=kernels)) as started:
        wanted = "bfloat16" if linear_dtype == "auto" else linear_dtype
        assert started.info.linear_dtype == wanted
        return np.array([n for row in score(started, some_rows()).rows for n in numbers(row.outcome)])


def test_scores_drift_and_both_sets_drift_alike() -> None:
    exact, ours, judged = scores("auto", "cpu"), scores("int8", "cpu"), scores("int8", "reference")

    assert 0.002 < np.abs(ours - exact).std() / exact.std() < 0.1
    assert np.abs(ours - judged).std() / exact.std() < 0.03


@pytest.mark.skipif(NATIVE is None or NATIVE.feed_forward8 is None, reason="no AMX or no C compiler here")
def test_with_amx_a_score_is_the_same_cold_warm_and_alone_bit_for_bit() -> None:
    checkpoint = tiny_checkpoint(tiny_config(num_layers=3), dtype=torch.bfloat16)
    prefix = np.random.default_rng(6).integers(VOCABULARY, size=150).tolist()
    tails = [np.random.default_rng(n).integers(VOCABULARY, size=n).tolist() for n in (1, 7, 20, 33)]
    rows = [make_row([*prefix, *tail], keep=len(prefix)) for tail in tails]

    def found(of: list[Row]) -> list[float]:
        return [n for row in score(started, of).rows for n in numbers(row.outcome)]

    with running(tiny_engine(checkpoint, linear_dtype="int8", kernels="cpu", num_blocks=200)) as started:
        cold, warm = found(rows), found(rows)
        assert started.info.kernels == "cpu-amx"
    with running(
        tiny_engine(checkpoint, linear_dtype="int8", kernels="cpu", num_blocks=200, step_tokens=32)
    ) as started:
        alone = [n for row in rows for n in found([row])]

    assert cold == warm == alone


def test_weights_of_feed_forward_parts_take_a_byte_each() -> None:
    config = tiny_config(num_layers=3)
    checkpoint = tiny_checkpoint(config, dtype=torch.bfloat16)
    held = []
    for linear_dtype in ("auto", "int8"):
        with running(tiny_engine(checkpoint, linear_dtype=linear_dtype, kernels="cpu")) as started:
            held.append(started.info.weight_bytes)

    outputs = 2 * config.intermediate_size + config.hidden_size
    assert held[0] - held[1] == 3 * (3 * config.intermediate_size * config.hidden_size - 4 * outputs)


def test_with_float32_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="linear_dtype 'int8' goes with dtype 'bfloat16' only; dtype is 'float32'"):
        EngineConfig(linear_dtype="int8", dtype="float32")


def test_kernels_that_have_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(ReferenceKernels):
        has_int8 = False

    def load(_name: str, _device: torch.device) -> KernelSet:
        return Without()

    monkeypatch.setattr(engine.device, "load_kernels", load)

    with pytest.raises(DeviceError, match="linear_dtype 'int8' is not possible with kernels 'reference' here"):
        find_kernels(EngineConfig(linear_dtype="int8"), torch.device("cpu"))
