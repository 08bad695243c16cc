"""Time attention launches on the CUDA device at hand and write its launch table.

    python -m benchmarks.gpu.tune                  models of the benchmark, every bucket
    python -m benchmarks.gpu.tune --models 0.6B    some of them
    python -m benchmarks.gpu.tune --output FILE    instead of the table of the package

Per head size and GQA group, and per bucket of rows and of the longest span, every candidate that
compiles without spills and fits the device's shared memory is checked, then timed; the fastest
becomes a rule. The file is read by ``kernels.triton.tuning`` from then on, before the compiled rules.

Exit status: 0 written; 1 a result is wrong; 2 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

from benchmarks.gpu.check import CheckFailed, Judge
from benchmarks.gpu.timing import time_in_turns
from benchmarks.gpu.workloads import HEADS, Workload, make_step
from kernels.triton import TritonKernels
from kernels.triton.report import SHARED_LIMIT, measure
from kernels.triton.tuning import FOLDER, Launch, Rule
from kernels.triton.variants import attention_variant

_DTYPE = torch.bfloat16
_ROW_TOKENS = 20
_REPEATS = 3

# upper bounds of the buckets (None: no bound), each with a size in its middle that stands for it
ROW_BUCKETS: tuple[tuple[int | None, int], ...] = ((32, 24), (1024, 512), (8192, 4096), (None, 32768))
SPAN_BUCKETS: tuple[tuple[int | None, int], ...] = ((256, 200), (2048, 1200), (None, 4200))

Seconds = Callable[[Launch], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Steps of up to ``max_rows`` packed rows and ``max_span`` keys, and the step that is timed for them."""

    max_rows: int | None
    max_span: int | None
    workload: Workload


def candidates() -> list[Launch]:
    """Every launch that is worth a try; 128 rows need 8 warps, and fewer than 64 keys no more than 3 stages."""
    found = []
    for rows, keys, warps, stages in itertools.product((16, 32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 5)):
        if (rows == 128 and warps == 4) or (rows == 16 and warps == 8) or (keys == 128 and stages == 5):
            continue
        found.append(Launch(tile_rows=rows, tile_keys=keys, num_warps=warps, num_stages=stages))
    return found


def buckets(model: str) -> Iterator[Bucket]:
    """The buckets of one model's heads, those with the tightest bounds first."""
    num_heads, num_kv_heads, _ = HEADS[model]
    for (max_rows, rows), (max_span, span) in itertools.product(ROW_BUCKETS, SPAN_BUCKETS):
        tokens = max(1, rows * num_kv_heads // num_heads)
        full, rest = divmod(tokens, _ROW_TOKENS)
        lengths = (_ROW_TOKENS,) * full + ((rest,) if rest else ())
        name = f"rows {rows} span {span}"
        workload = Workload(name=name, model=model, prefix_tokens=span, row_tokens=lengths)
        yield Bucket(max_rows=max_rows, max_span=max_span, workload=workload)


def tune(
    arch: int,
    models: Iterable[str],
    *,
    refuse: Callable[[Workload, Launch], str | None],
    prepare: Callable[[Workload], Seconds],
    say: Callable[[str], None] = print,
) -> list[Rule]:
    """The fastest launch of every bucket.

    Args:
        refuse: Why a launch must not be used for the heads of a workload, or None.
        prepare: Makes a step; what it gives checks and times a launch on it.

    Raises:
        CheckFailed: a launch gives a wrong result.
    """
    rules = []
    for model in models:
        sound: list[Launch] | None = None
        for bucket in buckets(model):
            if sound is None:
                sound = _sound(bucket.workload, refuse, say)
            seconds = prepare(bucket.workload)
            taken = {launch: seconds(launch) for launch in sound}
            best = min(taken, key=taken.__getitem__)
            say(f"{model} {bucket.workload.name}: {_text(best)} in {taken[best] * 1e3:.3f} ms, of {len(taken)}")
            rules.append(_rule(arch, bucket, best))
    return rules


def _sound(
    workload: Workload, refuse: Callable[[Workload, Launch], str | None], say: Callable[[str], None]
) -> list[Launch]:
    group = workload.shape.num_heads // workload.shape.num_kv_heads
    found = []
    for launch in candidates():
        reason = f"{group} heads do not fit its rows" if launch.tile_rows < group else refuse(workload, launch)
        if reason is None:
            found.append(launch)
        else:
            say(f"{workload.model} {_text(launch)}: refused: {reason}")
    return found


def _rule(arch: int, bucket: Bucket, launch: Launch) -> Rule:
    shape = bucket.workload.shape
    return Rule(
        min_arch=arch,
        max_arch=arch,
        min_head_dim=shape.head_dim,
        max_head_dim=shape.head_dim,
        group=shape.num_heads // shape.num_kv_heads,
        element_bytes=_DTYPE.itemsize,
        max_rows=bucket.max_rows,
        max_span=bucket.max_span,
        quantised=False,
        launch=launch,
    )


def table(rules: Sequence[Rule], source: str) -> str:
    """The rules as TOML, under a comment that says where they were measured."""
    lines = [f"# {source}", ""]
    for rule in rules:
        launch = rule.launch
        lines.append("[[rule]]")
        for name in Rule.__slots__:
            value = getattr(rule, name)
            if name != "launch" and value is not None:
                lines.append(f"{name} = {str(value).lower()}")
        lines.append(f"launch = [{launch.tile_rows}, {launch.tile_keys}, {launch.num_warps}, {launch.num_stages}]")
        lines.append("")
    return "\n".join(lines)


def _text(launch: Launch) -> str:
    return f"{launch.tile_rows}x{launch.tile_keys} {launch.num_warps}w {launch.num_stages}s"


def compiled_refusal(arch: int, shared_bytes: int) -> Callable[[Workload, Launch], str | None]:
    """Refuses by the compiled code: spills, or more shared memory than ``shared_bytes``."""

    def refuse(workload: Workload, launch: Launch) -> str | None:
        found = measure(attention_variant(arch, workload.shape, _DTYPE, launch))
        if found.stack_bytes or found.counts["spills"]:
            return f"{found.stack_bytes} B of stack, {found.counts['spills']} spill instructions"
        if found.shared_bytes > shared_bytes:
            return f"{found.shared_bytes} B of shared memory; {shared_bytes} there"
        return None

    return refuse


def device_times(device: torch.device) -> Callable[[Workload], Seconds]:
    """Checks and times launches on a CUDA device."""

    def prepare(workload: Workload) -> Seconds:
        step = make_step(workload, device, _DTYPE)
        judge = Judge(step)
        tensors = step.query, step.key, step.value, step.key_pool, step.value_pool

        def seconds(launch: Launch) -> float:
            kernels = TritonKernels(device, choose=lambda _: launch)
            plan = kernels.plan(step.table())
            judge.check(kernels.attend(*tensors, plan, workload.shape))
            call = {"launch": lambda: kernels.attend(*tensors, plan, workload.shape)}
            return time_in_turns(call, device, repeats=_REPEATS, flush=False)["launch"].median * 1e-3

        return seconds

    return prepare


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tune", description="Write a launch table.")
    parser.add_argument("--models", nargs="+", choices=list(HEADS), default=list(HEADS), help="whose heads are tuned")
    parser.add_argument("--output", type=Path, help="where to write; the package's table of this architecture")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was tuned", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    facts = torch.cuda.get_device_properties(device)
    arch = facts.major * 10 + facts.minor
    # older versions of torch do not tell; consumer parts have the least
    shared_bytes = getattr(facts, "shared_memory_per_block_optin", SHARED_LIMIT.get(arch, min(SHARED_LIMIT.values())))
    refuse = compiled_refusal(arch, shared_bytes)
    try:
        rules = tune(arch, options.models, refuse=refuse, prepare=device_times(device))
    except CheckFailed as failure:
        print(f"WRONG: {failure}", file=sys.stderr)
        return 1
    day = dt.datetime.now(tz=dt.UTC).date()
    source = f"{facts.name}, {day}, torch {torch.__version__}, triton {triton.__version__}"
    output = options.output or FOLDER / f"sm_{arch}.toml"
    output.write_text(table(rules, source), encoding="utf-8")
    print(f"{len(rules)} rules in {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
