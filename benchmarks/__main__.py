"""``python -m benchmarks``: measure, print, and leave records and a picture behind."""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.check_prompts import check_prompts
from benchmarks.comparison import OURS
from benchmarks.flops import read_model_cost
from benchmarks.machine import describe_machine
from benchmarks.options import DEFAULT_REPEATS, Options, OptionsError, parse
from benchmarks.own_runs import run_cache, run_memory, run_profile
from benchmarks.progress import tell
from benchmarks.records import CalibrationRecord, FaultRecord, Record, RecordFile, RunRecord, read_records
from benchmarks.report import report
from benchmarks.session import Session
from benchmarks.sizes import SIZES
from benchmarks.systems.catalogue import TITLES as SYSTEM_TITLES
from benchmarks.vocabulary import Vocabulary, VocabularyError, load_vocabulary
from benchmarks.workloads import TITLES, Workload, WorkloadError, build_workload
from engine import CheckpointError
from scorer.fetch import ModelNotFoundError, find_model
from scorer.tokens.tokenizer_files import load_tokenizer

_PROFILED = {OURS: ("W1", "W2", "W3", "W4", "W5"), "ours-http": ("W1", "W2", "W3", "W4")}
_IN_BLOCKS = ("W1", "W2", "W3", "W4", "W5", "W7", "SWEEP")


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; 1 if anything that must not be was found, 2 if it cannot run."""
    try:
        options = parse(arguments)
        if options.listing:
            print(_listing())
            return 0
        if options.report is not None:
            return _show_earlier(options.report)
        return _run(options)
    except (OptionsError, VocabularyError, WorkloadError, ModelNotFoundError, CheckpointError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


def _run(options: Options) -> int:
    vocabulary = load_vocabulary()
    model = find_model(options.model, os.environ)
    tokenizer = load_tokenizer(model).tokenizer

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    vocabulary.check(encode)
    cost = read_model_cost(model)
    workloads = _build(options, vocabulary)
    stamp = dt.datetime.now(tz=dt.UTC)
    path = options.results / f"{stamp:%Y%m%dT%H%M%SZ}-{options.size}.jsonl"
    record_file = RecordFile(path)
    record_file.add(
        RunRecord(
            date=stamp.isoformat(timespec="seconds"),
            machine=dict(describe_machine()),
            model=vocabulary.model,
            cost=cost,
            size=options.size,
            threads=options.threads,
            repeats=options.repeats,
            workloads={name: workload.sha256 for name, workload in workloads.items()},
        )
    )
    with Session(options, model, vocabulary, record_file) as session:
        session.start_systems()
        session.compare_scores(check_prompts(encode))
        session.run_blocks([workloads[name] for name in options.workloads if name in _IN_BLOCKS])
        plan = profile_plan(options, workloads)
        run_profile(session, plan, vocabulary, record_file, repeats=min(options.repeats, DEFAULT_REPEATS))
        if "W6" in options.workloads:
            corpus = SIZES[options.size].corpus
            run_cache(session, workloads["W6"], corpus=corpus, cost=cost, record_file=record_file)
        if "MEMORY" in options.workloads:
            run_memory(
                session,
                workloads["W6"],
                systems=[spec.name for spec in options.systems if "MEMORY" in spec.workloads],
                requests=options.memory_requests,
                cost=cost,
                record_file=record_file,
            )
        record_file.add(CalibrationRecord(tuple(session.gauge.readings)))
    tell(f"records: {path}")
    _show(record_file.records, path)
    return int(any(isinstance(record, FaultRecord) for record in record_file.records))


def _build(options: Options, vocabulary: Vocabulary) -> dict[str, Workload]:
    wanted = set(options.workloads) - {"PROFILE", "MEMORY"}
    if "PROFILE" in options.workloads:
        wanted |= {name for names in _PROFILED.values() for name in names}
    if "MEMORY" in options.workloads:
        wanted.add("W6")
    return {name: build_workload(name, options.size, vocabulary) for name in TITLES if name in wanted}


def profile_plan(options: Options, workloads: Mapping[str, Workload]) -> dict[str, list[Workload]]:
    """What is run with clocks around operations; the sweep is, to tell attention from the rest."""
    plan: dict[str, list[Workload]] = {}
    for spec in options.systems:
        names = _PROFILED.get(spec.name, ()) if "PROFILE" in options.workloads else ()
        if spec.name == OURS and "SWEEP" in options.workloads:
            names = (*names, "SWEEP")
        if names:
            plan[spec.name] = [workloads[name] for name in names]
    return plan


def _show_earlier(path: Path) -> int:
    try:
        _show(read_records(path), path)
    except (OSError, ValueError) as error:  # what cannot be decoded is a ValueError too
        print(f"benchmarks: {path} cannot be shown: {error}", file=sys.stderr)
        return 2
    return 0


def _show(records: Sequence[Record], path: Path) -> None:
    """Print the report, and draw a picture beside the records if that is possible."""
    print(report(records))
    if importlib.util.find_spec("matplotlib") is None:
        tell("no picture: it needs matplotlib (pip install 'radix-scorer[bench]')")
        return
    from benchmarks.plot import draw  # noqa: PLC0415  matplotlib is optional

    picture = path.with_suffix(".png")
    if draw(records, picture):
        tell(f"picture: {picture}")


def _listing() -> str:
    lines = ["workloads"]
    lines += [f"  {name:<10} {title}" for name, title in TITLES.items()]
    lines += [
        "  MEMORY     resident set over many requests of W6, in process and over HTTP",
        "  PROFILE    time in every operation of our engine, in process and over HTTP",
    ]
    lines += ["systems", *(f"  {name:<10} {title}" for name, title in SYSTEM_TITLES.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
