"""Linear layers in 8 bits: a setting that moves scores a little, and is refused by name where it cannot be."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

import engine.device
from engine.config import EngineConfig
from engine.device import find_kernels
from engine.errors import DeviceError
from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from tests.helpers.plain_model import numbers
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

VOCABULARY = 97


def scores(linear_dtype: Literal["auto", "int8"], kernels: Literal["cpu", "reference"]) -> np.ndarray:
    rng = np.random.default_rng(5)
    rows = [make_row(rng.integers(VOCABULARY, size=n).tolist()) for n in (30, 9, 4, 22)]
    checkpoint = tiny_checkpoint(tiny_config(num_layers=3), dtype=torch.bfloat16)
    with running(tiny_engine(checkpoint, linear_dtype=linear_dtype, kernels=kernels)) as started:
        wanted = "bfloat16" if linear_dtype == "auto" else linear_dtype
        assert started.info.linear_dtype == wanted
        return np.array([n for row in score(started, rows).rows for n in numbers(row.outcome)])


def test_scores_drift_and_both_sets_drift_alike() -> None:
    exact, ours, judged = scores("auto", "cpu"), scores("int8", "cpu"), scores("int8", "reference")

    assert 0.002 < np.abs(ours - exact).std() / exact.std() < 0.1
    assert np.abs(ours - judged).std() / exact.std() < 0.03


def test_with_float32_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="linear_dtype 'int8' goes with dtype 'bfloat16' only; dtype is 'float32'"):
        EngineConfig(linear_dtype="int8", dtype="float32")


def test_kernels_that_have_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(ReferenceKernels):
        has_int8_linear = False

    def load(_name: str, _device: torch.device) -> KernelSet:
        return Without()

    monkeypatch.setattr(engine.device, "load_kernels", load)

    with pytest.raises(DeviceError, match="linear_dtype 'int8' is not possible with kernels 'reference' here"):
        find_kernels(EngineConfig(linear_dtype="int8"), torch.device("cpu"))
