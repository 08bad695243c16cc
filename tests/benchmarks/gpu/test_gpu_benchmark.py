"""What of the GPU benchmark runs anywhere: its steps, its judge, its PyTorch peers, its refusal."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import methods
from benchmarks.gpu.check import CheckFailed, Judge
from benchmarks.gpu.methods import CompiledFlex, FlashInfer, Method, PaddedSdpa, SetMethod, Unavailable
from benchmarks.gpu.timing import Times
from benchmarks.gpu.vllm_method import VllmUnified
from benchmarks.gpu.workloads import HEADS, Step, Workload, make_step, workloads
from kernels.checks import check_span_table
from kernels.reference import ReferenceKernels
from tests.benchmarks.gpu import paged_stand_in

CPU = torch.device("cpu")


def small(prefix_tokens: int = 48, row_tokens: tuple[int, ...] = (5, 1, 9, 16)) -> Workload:
    return Workload(name="small", model="0.6B", prefix_tokens=prefix_tokens, row_tokens=row_tokens)


def step(workload: Workload | None = None) -> Step:
    return make_step(workload or small(), CPU, torch.float32)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(function: Callable[..., Tensor], **_: object) -> Callable[..., Tensor]:
        return function

    monkeypatch.setattr(torch, "compile", same)


@pytest.mark.parametrize("workload", [w for w in workloads() if w.model == "135M"], ids=lambda w: w.name)
def test_every_workload_is_a_good_span_table(workload: Workload) -> None:
    made = make_step(workload, CPU, torch.float32)

    check_span_table(made.table(), num_fresh=workload.num_tokens, num_slots=made.key_pool.shape[1])


def test_workloads_cover_every_model() -> None:
    assert {w.model for w in workloads()} == set(HEADS)


def test_useful_flop_counts_visible_pairs() -> None:
    plan = ReferenceKernels().plan(step().table())

    assert small().useful_flop == 4 * 16 * 128 * int(plan.visible.sum())


@pytest.mark.parametrize("prefix_tokens", [0, 40, 48])
def test_sdpa_agrees_with_the_judge(prefix_tokens: int) -> None:
    made = step(small(prefix_tokens))

    assert Judge(made).check(PaddedSdpa().prepare(made)()) < 1e-5


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("prefix_tokens", [0, 40])
def test_flex_attention_agrees_with_the_judge(prefix_tokens: int) -> None:
    made = step(small(prefix_tokens, (70, 30, 50)))

    assert Judge(made).check(CompiledFlex().prepare(made)()) < 1e-5


@pytest.mark.parametrize(("cascade", "prefix_tokens"), [(False, 0), (False, 48), (True, 48), (True, 40)])
def test_flashinfer_gets_page_tables_that_mean_the_step(
    monkeypatch: pytest.MonkeyPatch, prefix_tokens: int, *, cascade: bool
) -> None:
    def found(_: str) -> object:
        return object()

    monkeypatch.setattr(methods, "_WORKSPACE_BYTES", 16)
    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setitem(sys.modules, "flashinfer", paged_stand_in.module())
    made = step(small(prefix_tokens, (5, 1, 17, 16)))

    assert Judge(made).check(FlashInfer(cascade=cascade).prepare(made)()) < 1e-5


@pytest.mark.parametrize("place", ["vllm.v1.attention.ops", "vllm.attention.ops"])
@pytest.mark.parametrize("prefix_tokens", [0, 8, 48, 200])
def test_vllm_gets_pages_that_mean_the_step(monkeypatch: pytest.MonkeyPatch, place: str, prefix_tokens: int) -> None:
    def found(_: str) -> object:
        return object()

    def load(name: str) -> object:
        if name != f"{place}.triton_unified_attention":
            raise ModuleNotFoundError(name)
        return paged_stand_in.vllm_module()

    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(importlib, "import_module", load)
    made = step(small(prefix_tokens, (5, 1, 17, 16)))

    assert Judge(made).check(VllmUnified().prepare(made)()) < 1e-5


def test_a_kernel_set_agrees_with_the_judge() -> None:
    made = step()
    method: Method = SetMethod("reference", ReferenceKernels())

    assert Judge(made).check(method.prepare(made)()) == 0.0


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_wrong_result_fails_the_check(wrong: float) -> None:
    made = step()
    result = PaddedSdpa().prepare(made)()
    result[-1, 3, 7] += wrong

    with pytest.raises(CheckFailed, match=r"largest error .* allowed"):
        Judge(made).check(result)


class Fixed:
    """A method whose result, or failure, is given."""

    def __init__(self, name: str, result: Tensor | Exception) -> None:
        self.name = name
        self._result = result

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        def run() -> Tensor:
            if isinstance(self._result, Exception):
                raise self._result
            return self._result

        return run


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(calls: dict[str, Callable[[], Tensor]], *_: object, **__: object) -> dict[str, Times]:
        return {name: Times(blocks=(2.0, 1.0, 4.0)) for name in calls}

    monkeypatch.setattr(command, "time_in_turns", times)
    monkeypatch.setattr(command, "_DTYPE", torch.float32)


@pytest.mark.usefixtures("instant")
def test_peers_that_are_wrong_or_broken_are_named_and_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    right = PaddedSdpa().prepare(step())()
    tried: list[Method] = [Fixed("triton", right), Fixed("bad", right + 1), Fixed("broken", RuntimeError("no image"))]
    sound = command._run(small(), tried, CPU, ceiling=1e12, repeats=1)
    printed = capsys.readouterr().out

    assert sound
    assert "- bad: WRONG: largest error" in printed
    assert "- broken: left out: RuntimeError: no image" in printed
    assert printed.count("| triton | 2.000 | 1.000 | 4.000 |") == 2
    assert "| bad |" not in printed


@pytest.mark.usefixtures("instant")
def test_a_wrong_result_of_ours_is_not_timed_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    right = PaddedSdpa().prepare(step())()
    sound = command._run(small(), [Fixed("triton", right + 1), PaddedSdpa()], CPU, ceiling=1e12, repeats=1)

    assert not sound
    assert "TFLOP/s" not in capsys.readouterr().out


@pytest.mark.parametrize("package", ["flashinfer", "vllm"])
def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def none(_: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", none)
    peer: Method = FlashInfer(cascade=True) if package == "flashinfer" else VllmUnified()
    with pytest.raises(Unavailable, match=f"{package} is not installed"):
        peer.prepare(step())


def test_a_vllm_whose_kernel_has_moved_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_: str) -> object:
        return object()

    def moved(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(importlib, "import_module", moved)

    with pytest.raises(Unavailable, match=r"vllm has none of vllm\.v1\.attention\.ops\.triton_unified_attention, vllm"):
        VllmUnified().prepare(step())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_ends_with_status_2_and_says_why() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 2
    assert run.stderr == "no CUDA device here: GPU kernels were neither checked nor timed\n"
