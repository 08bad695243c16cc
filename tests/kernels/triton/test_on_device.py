"""The compiled kernels on a CUDA device: the contract, the engine, and no compilation after the start."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
import triton

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
