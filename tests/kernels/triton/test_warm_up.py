"""Nothing is compiled after the start: what steps launch was launched by the warm-up.

Triton is given a driver without a device, and told before each compilation that somebody else has
done it. So launches do nothing, results are whatever memory held, and what is left is the question
under test: which kernels, with which constants, dtypes, alignments and classes of strides.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

import engine.device
from engine.checkpoint import load_checkpoint
from engine.runner import EngineThread
from kernels.api import KernelSet
from kernels.triton import TritonKernels, kernel_set
from kernels.triton.tuning import RULES, LaunchKey, choose_launch, reachable
from tests.helpers.families import tiny_model
from tests.helpers.no_device import launch_nothing
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

VOCABULARY = 97
MULTIPROCESSORS = 132


@pytest.fixture(params=[80, 90, 100])
def arch(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def launched(arch: int, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Name and specialisation of every kernel that is launched meanwhile."""
    return launch_nothing(arch, monkeypatch)


@pytest.fixture
def kernels(arch: int, monkeypatch: pytest.MonkeyPatch) -> TritonKernels:
    monkeypatch.setattr(kernel_set, "interpreted", lambda: True)
    made = TritonKernels("cpu", split_below=2 * MULTIPROCESSORS)
    made._arch = arch

    def load(_name: str, _device: torch.device) -> KernelSet:
        return made

    monkeypatch.setattr(engine.device, "load_kernels", load)
    return made


def run_random_tasks(running_engine: EngineThread, seed: int) -> None:
    """Short and long, few and many rows, cold and warm, with every kind of readout."""
    rng = random.Random(seed)
    for _ in range(8):
        prefix = [rng.randrange(VOCABULARY) for _ in range(rng.choice([0, 1, 17, 300, 700]))]
        rows = []
        for _ in range(rng.choice([1, 2, 30, 90])):
            tail = [rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 2, 15, 40]))]
            target = rng.choice([0, min(3, len(tail))])
            rows.append(make_row([*prefix, *tail], target=target, keep=rng.choice([0, len(prefix)])))
        score(running_engine, rows)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("step_tokens", [64, 4096])
def test_steps_launch_only_what_the_warm_up_launched(
    launched: set[tuple[str, str]], kv_dtype: Literal["auto", "int8"], step_tokens: int
) -> None:
    checkpoint = tiny_checkpoint(tiny_config(), dtype=torch.bfloat16)
    with running(tiny_engine(checkpoint, step_tokens=step_tokens, kv_dtype=kv_dtype, num_blocks=4096)) as started:
        warm = set(launched)
        for seed in range(3):
            run_random_tasks(started, seed)

    assert started.info.warm_up_s > 0
    assert {name for name, _ in warm} >= {"tree_attention_kernel", "merge_partials_kernel", "log_sum_exp_kernel"}
    assert sorted(name for name, _ in launched - warm) == []


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3"])
@pytest.mark.parametrize("arch", [90], indirect=True)
def test_norms_of_heads_windows_and_caps_are_warmed_up(
    launched: set[tuple[str, str]], family: str, tmp_path: Path
) -> None:
    tiny_model(family, vocab_size=VOCABULARY, max_position_embeddings=1024).save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path, torch.bfloat16)
    with running(tiny_engine(checkpoint, step_tokens=1024, num_blocks=2048)) as started:
        warm = set(launched)
        run_random_tasks(started, seed=0)

    assert sorted(name for name, _ in launched - warm) == []


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("quantised", [False, True])
def test_every_launch_of_the_table_is_reached(arch: int, head_dim: int, group: int, *, quantised: bool) -> None:
    like = LaunchKey(
        arch=arch, head_dim=head_dim, element_bytes=2, group=group, rows=group, longest_span=1, quantised=quantised
    )
    reached = {choose_launch(key) for key in reachable(like, max_span=100_000)}
    rng = np.random.default_rng(0)
    asked = {
        choose_launch(
            LaunchKey(
                arch=arch,
                head_dim=head_dim,
                element_bytes=2,
                group=group,
                rows=int(2 ** rng.uniform(0, 14)) * group,
                longest_span=int(2 ** rng.uniform(0, 16)),
                quantised=quantised,
            )
        )
        for _ in range(500)
    }

    assert reached == asked


def test_no_prefix_longer_than_the_model_takes_is_tried(arch: int) -> None:
    like = LaunchKey(arch=arch, head_dim=64, element_bytes=2, group=1, rows=1, longest_span=1)
    bounds = {rule.max_span for rule in RULES} - {None}

    assert bounds
    assert max(key.longest_span for key in reachable(like, max_span=100)) <= 100
