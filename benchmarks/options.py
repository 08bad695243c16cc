"""What the command line says, checked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.sizes import SizeName
from benchmarks.systems.catalogue import ALL_WORKLOADS, SPECS, SystemSpec
from scorer.fetch import DEFAULT_MODEL

_ROOT = Path(__file__).parents[1]
_POOL_MIB = 3072
_PROFILED = "PROFILE"
# every block, retries included, has words of its own; there are 512 wordings
_MOST_RETRIES = 5
_MOST_REPEATS = 20
DEFAULT_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A run.

    Args:
        workloads: Names, among them ``PROFILE`` for the run with clocks around operations.
        retries: How often a block is run again when the machine was not idle.
        report: Only show the records in this file.
        time_limit_s: No further repeat begins that would end later than so long after the start.
        reference: Compare scores with float32 before anything is timed.
    """

    listing: bool
    report: Path | None
    size: SizeName
    workloads: tuple[str, ...]
    systems: tuple[SystemSpec, ...]
    repeats: int
    retries: int
    time_limit_s: float | None
    threads: int
    model: str
    most_others: float
    gemm_floor: float
    memory_requests: int
    reference: bool
    results: Path


class OptionsError(Exception):
    """The command line asks for something that is not there."""


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        OptionsError: a workload, system or setting is unknown, or a number is out of range.
        SystemExit: ``--help``, or a word that no option takes.
    """
    found = _parser().parse_args(arguments)
    size: SizeName = "quick" if found.quick else found.size
    default_workloads = ("W1", "W2") if found.quick else (*ALL_WORKLOADS, _PROFILED)
    default_systems = (
        ("ours", "hf-prefix") if found.quick else ("ours", "ours-http", "ours-int8", "hf-prefix", "hf-pad")
    )
    workloads = _names(found.only, default_workloads, (*ALL_WORKLOADS, _PROFILED), "workload")
    peers = tuple(name for name in ("llamacpp", "vllm") if getattr(found, name) or getattr(found, f"{name}_start"))
    variants = [_variant(text) for text in found.ours]
    known = (*SPECS, *(spec.name for spec in variants))
    chosen = _names(found.systems, (*default_systems, *peers, *(spec.name for spec in variants)), known, "system")
    limit = found.time_limit
    if limit is not None and not limit > 0:
        raise OptionsError(f"--time-limit is {limit}; it must be more than 0 minutes")
    default_repeats = 1 if found.quick else DEFAULT_REPEATS if limit is None else _MOST_REPEATS
    repeats = found.repeats if found.repeats is not None else default_repeats
    _in_range("repeats", repeats, 1, _MOST_REPEATS)
    retries = found.retries if found.retries is not None else 0 if found.quick else 2
    _in_range("retries", retries, 0, _MOST_RETRIES)
    _in_range("threads", found.threads, 1, 1024)
    specs = {**SPECS, **{spec.name: spec for spec in variants}}
    return Options(
        listing=found.list,
        report=found.report,
        size=size,
        workloads=workloads,
        systems=tuple(_with_options(specs[name], found) for name in dict.fromkeys(chosen)),
        repeats=repeats,
        retries=retries,
        time_limit_s=None if limit is None else 60 * limit,
        threads=found.threads,
        model=found.model,
        most_others=found.most_others,
        gemm_floor=found.gemm_floor,
        memory_requests=found.memory_requests,
        reference=not found.quick,
        results=found.results,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the scorer beside its peers.")
    add = parser.add_argument
    add("--list", action="store_true", help="name workloads and systems, and end")
    add("--report", type=Path, metavar="FILE", help="print and draw the records of an earlier run, and end")
    add("--quick", action="store_true", help="one repeat of small W1 and W2, ours beside transformers")
    add("--size", choices=["full", "quick", "tiny"], default="full", help="length of the workloads")
    add("--only", metavar="W1,W2", help="these workloads; PROFILE is the run with clocks around operations")
    add("--systems", metavar="A,B", help="these systems; by default ours, transformers, and the peers named below")
    add("--repeats", type=int, help=f"rounds in which systems alternate ({DEFAULT_REPEATS}; 1 with --quick)")
    add("--retries", type=int, help="further tries for a block when the machine was not idle (2; 0 with --quick)")
    add(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help=f"begin no repeat that would end later (and without --repeats as many as fit, at most {_MOST_REPEATS})",
    )
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each system")
    add("--model", default=DEFAULT_MODEL.name, help="name or path of the default model")
    add("--pool-mib", type=int, default=_POOL_MIB, help="KV pool of our systems")
    add("--ours", action="append", default=[], metavar="NAME:KEY=VALUE,..", help="another ours, with these settings")
    for name in ("vllm", "llamacpp"):
        add(f"--{name}", metavar="URL", help=f"address of a {name} server")
        add(f"--{name}-start", metavar="COMMAND", help=f"starts the {name} server; it is paused between its blocks")
    add("--most-others", type=float, default=0.1, help="processors that others may use on an idle machine")
    add("--gemm-floor", type=float, default=0.95, help="share of the best calibration rate that an idle machine has")
    add("--memory-requests", type=int, default=10_000, help="requests of the memory workload")
    add("--results", type=Path, default=_ROOT / "benchmarks/results", help="folder for records and pictures")
    return parser


def _variant(text: str) -> SystemSpec:
    name, colon, settings = text.partition(":")
    pairs = [pair.partition("=") for pair in settings.split(",")]
    if not name or not colon or not all(key and value for key, _, value in pairs):
        raise OptionsError(f"--ours is {text!r}; wanted NAME:KEY=VALUE, such as small-step:step_tokens=512")
    options = {key: value for key, _, value in pairs}
    return replace(SPECS["ours"], name=f"ours-{name}", options=options)


def _with_options(spec: SystemSpec, found: argparse.Namespace) -> SystemSpec:
    options = dict(spec.options)
    if spec.kind in ("ours", "ours-http"):
        options.setdefault("pool_bytes", str(found.pool_mib << 20))
    if spec.kind in ("vllm", "llamacpp"):
        given = {"url": getattr(found, spec.kind), "start": getattr(found, f"{spec.kind}_start")}
        options.update({key: value for key, value in given.items() if value})
    return replace(spec, options=options)


def _names(given: str | None, default: tuple[str, ...], known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if given is None:
        return default
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wanted = ", ".join(unknown) if unknown else repr(given)
        raise OptionsError(f"no {what} is called {wanted}; there are {', '.join(known)}")
    return names


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise OptionsError(f"--{name} is {value}; it must be between {low} and {high}")
