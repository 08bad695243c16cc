"""Check, then time attention and the whole engine on a CUDA device.

    python -m benchmarks.gpu                  pairs per second, then every workload and method that runs here
    python -m benchmarks.gpu --only 0.6B      workloads and models whose name contains this
    python -m benchmarks.gpu --sweep          every launch of the tuning table instead of peers
    python -m benchmarks.gpu --minutes 30     start nothing new after so long (9)

Exit status: 0 measured; 1 our result is wrong; 2 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.gpu.check import CheckFailed, Judge
from benchmarks.gpu.end_to_end import BATCHES, SMALL, BadScores, Batch, Run
from benchmarks.gpu.methods import CompiledFlex, FlashInfer, Method, PaddedSdpa, SetMethod, Unavailable
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.timing import matmul_ceiling, time_in_turns
from benchmarks.gpu.vllm_method import VllmUnified
from benchmarks.gpu.workloads import Step, Workload, make_step, workloads
from engine.config import EngineConfig

if TYPE_CHECKING:
    from kernels.triton.tuning import Launch, LaunchKey

OURS = "triton"
_DTYPE = torch.bfloat16
_END_TO_END_REPEATS = 3  # each takes seconds


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device here: GPU kernels were neither checked nor timed", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    methods = _launches(device) if options.sweep else _peers(device)
    ceiling = matmul_ceiling(device, _DTYPE, repeats=options.repeats)
    _print_machine(ceiling)
    deadline = time.monotonic() + options.minutes * 60
    wrong = False
    if not options.sweep:
        wrong |= not _end_to_end(options.only, repeats=min(options.repeats, _END_TO_END_REPEATS), deadline=deadline)
    for workload in workloads():
        if options.only not in f"{workload.model} {workload.name}":
            continue
        if time.monotonic() > deadline:
            print(f"\n{workload.model}: {workload.name}: left out, the {options.minutes:g} minutes are over")
            continue
        wrong |= not _run(workload, methods, device, ceiling=ceiling, repeats=options.repeats)
    return 1 if wrong else 0


def _end_to_end(only: str, *, repeats: int, deadline: float) -> bool:
    """Print pairs per second of every model; False when a row has no finite score."""
    for name, config in MODELS.items():
        if only not in name:
            continue
        if time.monotonic() > deadline:
            print(f"\n{name}: left out, the time is over")
            continue
        print(f"\n## {name}, random weights, bf16, whole engine\n")
        print(
            "| batch | graphs up to (tokens) | cold pairs/s | warm pairs/s | device busy, warm |\n|---|---|---|---|---|"
        )
        settings = EngineConfig(device="cuda", step_tokens=16_384, pool_bytes=8 << 30)
        for batches, used in (((*BATCHES, SMALL), settings), ((SMALL,), replace(settings, cuda_graphs="off"))):
            sound = _batches(Run(name, config, used, _DTYPE), batches, repeats=repeats)
            gc.collect()
            torch.cuda.empty_cache()
            if not sound:
                return False
    return True


def _batches(run: Run, batches: Sequence[Batch], *, repeats: int) -> bool:
    """Print the lines of one engine and close it; False when a row has no finite score."""
    try:
        for batch in batches:
            print(run.measure(batch, repeats=repeats))
    except BadScores as failure:
        print(f"- WRONG: {failure}")
        return False
    finally:
        run.close()
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Check, then time attention.")
    parser.add_argument("--only", default="", help="workloads whose model or name contains this")
    parser.add_argument("--repeats", type=int, default=5, help="blocks of calls per method (5)")
    parser.add_argument("--minutes", type=float, default=9, help="start nothing new after so long (9)")
    parser.add_argument("--sweep", action="store_true", help="time every launch of the tuning table instead of peers")
    return parser


def _peers(device: torch.device) -> list[Method]:
    from kernels.triton import TritonKernels  # noqa: PLC0415 - needs a device

    return [
        SetMethod(OURS, TritonKernels(device)),
        PaddedSdpa(),
        CompiledFlex(),
        FlashInfer(cascade=False),
        FlashInfer(cascade=True),
        VllmUnified(),
    ]


def _launches(device: torch.device) -> list[Method]:
    from kernels.triton import TritonKernels  # noqa: PLC0415 - needs a device
    from kernels.triton.tuning import RULES  # noqa: PLC0415

    methods: list[Method] = [SetMethod(OURS, TritonKernels(device))]
    for launch in dict.fromkeys(rule.launch for rule in RULES if rule.element_bytes == 2 and rule.min_arch):
        name = f"{OURS} {launch.tile_rows}x{launch.tile_keys} {launch.num_warps}w {launch.num_stages}s"
        methods.append(SetMethod(name, TritonKernels(device, choose=partial(_always, launch))))
    return methods


def _always(launch: Launch, _: LaunchKey) -> Launch:
    return launch


def _run(workload: Workload, methods: Sequence[Method], device: torch.device, *, ceiling: float, repeats: int) -> bool:
    """Print one workload; False when a result of ours is wrong."""
    print(f"\n## {workload.model}: {workload.name} (T={workload.num_tokens}, {workload.useful_flop / 1e9:.1f} GFLOP)")
    step = make_step(workload, device, _DTYPE)
    calls, sound = _checked(step, methods)
    if not sound:
        return False
    for flush in (False, True):
        times = time_in_turns(calls, device, repeats=repeats, flush=flush)
        print(f"\n| {'L2 flushed' if flush else 'L2 warm'} | ms | min | max | TFLOP/s | of matmul | time ÷ ours |")
        print("|---|---|---|---|---|---|---|")
        for name, taken in times.items():
            rate = workload.useful_flop / (taken.median * 1e-3)
            ratio = taken.median / times[OURS].median
            print(
                f"| {name} | {taken.median:.3f} | {min(taken.blocks):.3f} | {max(taken.blocks):.3f} "
                f"| {rate / 1e12:.1f} | {rate / ceiling:.1%} | {ratio:.2f} |"
            )
    return True


def _checked(step: Step, methods: Sequence[Method]) -> tuple[dict[str, Callable[[], Tensor]], bool]:
    """The calls whose result is right, and whether all of ours are; the rest is named and left out."""
    judge = Judge(step)
    calls = {}
    for method in methods:
        started = time.perf_counter()
        try:
            call = method.prepare(step)
            error = judge.check(call())
        except Unavailable as reason:
            print(f"- {method.name}: left out: {reason}")
        except CheckFailed as failure:
            print(f"- {method.name}: WRONG: {failure}")
            if method.name.startswith(OURS):
                return {}, False
        except Exception as failure:
            if method.name.startswith(OURS):
                raise
            print(f"- {method.name}: left out: {type(failure).__name__}: {failure}")
        else:
            ready_ms = (time.perf_counter() - started) * 1e3
            print(f"- {method.name}: largest error {error:.1e} of {judge.bound:.1e}; ready in {ready_ms:.0f} ms")
            calls[method.name] = call
    return calls, True


def _print_machine(ceiling: float) -> None:
    import triton  # noqa: PLC0415 - needs a device

    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
    try:
        clocks = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        clocks = "driver and clocks unknown"
    print(f"{torch.cuda.get_device_name()}; {clocks}; torch {torch.__version__}, triton {triton.__version__}")
    print(f"bf16 matmul: {ceiling / 1e12:.0f} TFLOP/s, random data, clocks as found")


if __name__ == "__main__":
    sys.exit(main())
