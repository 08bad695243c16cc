"""The compiled kernels on a CUDA device: the contract, the engine, and no compilation after the start."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
import triton

from engine.checkpoint import Checkpoint
from engine.replay import SIZES
from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from kernels.triton import TritonKernels
from tests.helpers.plain_model import numbers
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row
from tests.kernels.contract import KernelContract

VOCABULARY = 97
HERE = torch.cuda.is_available()

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="no CUDA device here")]


class TestTritonOnDevice(KernelContract):
    kernels: ClassVar[KernelSet] = TritonKernels("cuda") if HERE else ReferenceKernels()
    device = "cuda"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)


def scores(device: Literal["cpu", "cuda"], kv_dtype: Literal["auto", "int8"], compiled: list[str]) -> list[np.ndarray]:
    """Numbers of a cold, a warm and a ragged batch; ``compiled`` is emptied when the engine has started."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(VOCABULARY, size=300).tolist()
    tails = [rng.integers(VOCABULARY, size=n).tolist() for n in (1, 40, 3, 17)]
    rows = [make_row([*prefix, *tail], target=2 if len(tail) > 5 else 0, keep=len(prefix)) for tail in tails]
    many = [make_row([*prefix[:50], *rng.integers(VOCABULARY, size=9).tolist()]) for _ in range(200)]
    checkpoint = tiny_checkpoint(tiny_config(num_heads=6, num_kv_heads=2))
    with running(
        tiny_engine(checkpoint, device=device, kv_dtype=kv_dtype, num_blocks=4096, step_tokens=4096)
    ) as started:
        compiled.clear()
        results = [score(started, batch) for batch in (rows, rows, many)]
    return [np.array([n for row in result.rows for n in numbers(row.outcome)]) for result in results]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_engine_scores_as_on_the_cpu_and_compiles_nothing_in_a_request(
    kv_dtype: Literal["auto", "int8"], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def note(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name)

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", note)
    ours = scores("cuda", kv_dtype, compiled)

    assert compiled == []
    for wanted, got in zip(scores("cpu", kv_dtype, []), ours, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-3, rtol=1e-4)


def answers(checkpoint: Checkpoint, graphs: Literal["auto", "off"], compiled: list[str]) -> list[np.ndarray]:
    """Numbers of questions on a cached document, of more and of fewer tokens in turn."""
    rng = np.random.default_rng(2)
    document = rng.integers(VOCABULARY, size=700).tolist()
    batches = [[make_row(document, keep=len(document))]]
    for lengths in ((30, 60, 45), (2,), (90, 100, 40), (5, 5), (1,), (200,)):
        tails = [rng.integers(VOCABULARY, size=length).tolist() for length in lengths]
        batches.append([make_row([*document, *tail], target=2 if len(tail) > 50 else 0) for tail in tails])
    with running(
        tiny_engine(checkpoint, device="cuda", num_blocks=4096, step_tokens=512, cuda_graphs=graphs)
    ) as started:
        assert started.info.replayed_tokens == (SIZES if graphs == "auto" else ())
        compiled.clear()
        results = [score(started, rows) for rows in batches]
    return [np.array([n for row in result.rows for n in numbers(row.outcome)]) for result in results]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
def test_steps_that_are_replayed_score_as_steps_that_are_launched(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    replayed: list[int] = []
    replay = torch.cuda.CUDAGraph.replay

    def note(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name)

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(1)
        replay(graph)

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", note)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    checkpoint = tiny_checkpoint(tiny_config(num_heads=6, num_kv_heads=2), dtype=dtype)
    checkpoint.weights.final_norm.mul_(0.125)
    launched = answers(checkpoint, "off", compiled)
    assert replayed == []
    found = answers(checkpoint, "auto", compiled)

    assert compiled == []
    # those that try the recordings out, the last part of the document, every batch of questions
    assert len(replayed) == 4 * len(SIZES) + len(found)
    for got, wanted in zip(found, launched, strict=True):
        np.testing.assert_allclose(got, wanted, atol=tolerance, rtol=1e-4)


def test_bfloat16_on_the_device_is_bfloat16_on_the_cpu_within_rounding() -> None:
    """Tensor cores on bfloat16, which the interpreter cannot multiply."""
    rng = np.random.default_rng(1)
    rows = [make_row(rng.integers(VOCABULARY, size=n).tolist()) for n in (30, 300, 7)]
    whole = tiny_checkpoint(tiny_config(), dtype=torch.bfloat16)
    whole.weights.final_norm.mul_(0.125)
    found = []
    for device in ("cpu", "cuda"):
        with running(tiny_engine(whole, device=device, num_blocks=512)) as started:
            found.append(np.array([n for row in score(started, rows).rows for n in numbers(row.outcome)]))

    np.testing.assert_allclose(found[1], found[0], atol=0.1)
