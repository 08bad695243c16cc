"""The records of a run as tables that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.aims_report import aims_section
from benchmarks.comparison import OURS, Comparison, against_best, compare
from benchmarks.comparison_report import best_section, roof_cells, rounds_section
from benchmarks.flops import ModelCost
from benchmarks.profile_report import profile_section
from benchmarks.profile_series import profile_series
from benchmarks.records import (
    CacheRecord,
    DriftRecord,
    FaultRecord,
    MemoryRecord,
    PhaseRecord,
    ProfileRecord,
    Record,
    RunRecord,
    SystemRecord,
    ceiling_gflops,
)
from benchmarks.series import Series, phase_series
from benchmarks.summary import digits, percentile
from benchmarks.sweep import sweep_points, sweep_section
from benchmarks.tables import table

_THROUGHPUT = ("W1", "W2", "W3", "W5", "SWEEP")


def report(records: Sequence[Record]) -> str:
    """Everything that was measured, as Markdown.

    Raises:
        ValueError: the run did not come to its end.
    """
    ceiling = ceiling_gflops(records)
    run = next(record for record in records if isinstance(record, RunRecord))
    cost = run.cost
    phases = [record for record in records if isinstance(record, PhaseRecord)]
    series, best = phase_series(phases), against_best(phases)
    others = [system for system in dict.fromkeys(record.system for record in phases) if system != OURS]
    of_ours = [one for other in others for one in compare(phases, OURS, other)]
    profiles = profile_series([record for record in records if isinstance(record, ProfileRecord)])
    points = sweep_points(series, profiles)
    sections = [
        _circumstances(run, records, ceiling),
        _scores([record for record in records if isinstance(record, DriftRecord)]),
        aims_section(records, series, best, profiles, points),
        best_section(best, series, cost),
        _throughput([one for one in series if one.workload in _THROUGHPUT], cost, of_ours),
        _latency([one for one in series if one.workload == "W4"]),
        _open_loop([one for one in series if one.workload == "W7"]),
        _cache([record for record in records if isinstance(record, CacheRecord)]),
        profile_section(profiles),
        sweep_section(points),
        _memory([record for record in records if isinstance(record, MemoryRecord)]),
        rounds_section([*of_ours, *(one for one in best if one.own != OURS)]),
        _faults([record for record in records if isinstance(record, FaultRecord)]),
    ]
    return "\n\n".join(section for section in sections if section)


def _circumstances(run: RunRecord, records: Sequence[Record], ceiling: float) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    lines = [
        f"# {run.model}, {run.size} workloads, {run.date}",
        "",
        f"Threads: {run.threads}. Repeats: {run.repeats}. Machine: {machine}.",
        f"Calibration: bfloat16 matrix products at {digits(ceiling)} GFLOP/s, median of all readings.",
        "Roofs assume that rate for linear layers and attention alike.",
        "",
        table(
            ("system", "version", "settings"),
            [(one.system, one.version, one.settings) for one in records if isinstance(one, SystemRecord)],
        ),
    ]
    return "\n".join(lines)


def _scores(records: Sequence[DriftRecord]) -> str:
    if not records:
        return ""
    rows = [(one.system, f"{one.mean:.3f}", f"{one.largest:.3f}", str(one.flips), one.reference) for one in records]
    return "## Log-odds of Yes over No on 20 prompts\n\n" + table(
        ("system", "mean difference", "largest", "sign flips", "from"), rows
    )


def _throughput(series: Sequence[Series], cost: ModelCost, of_ours: Sequence[Comparison]) -> str:
    if not series:
        return ""
    ratios = {(one.workload, one.phase, one.other): one.ratio for one in of_ours}
    rows = [
        (
            f"{one.workload} {one.phase}",
            one.system,
            f"{one.rate}{one.mark}",
            str(one.rate.count),
            str(ratios.get((one.workload, one.phase, one.system), "")),
            digits(one.gemm_gflops),
            _ratio(one.computed, one.received),
            _ratio(one.computed, one.unique),
            *roof_cells(one, cost),
        )
        for one in series
    ]
    head = (
        *("workload", "system", "rows/s", "n", "ours ÷ it", "calibration"),
        *("computed ÷ received", "computed ÷ unique", "roof", "of the roof"),
    )
    return f"## Throughput\n\nMedian (least–greatest) of n repeats; {_MARKS}\n\n{table(head, rows)}"


_MARKS = "* the machine was not idle in most repeats, so all count; † only the first rows were run."


def _latency(series: Sequence[Series]) -> str:
    rows = []
    base = next((name for name in ("ours-http", OURS) if any(one.system == name for one in series)), "")
    ours = next((percentile(one.latencies_s, 50) for one in series if one.system == base), None)
    for one in series:
        p50, p99 = percentile(one.latencies_s, 50), percentile(one.latencies_s, 99)
        forward = digits(1000 * percentile(one.forwards_s, 50)) if one.forwards_s else ""
        client = f"{1000 * one.client_s / one.rows_run:.2f}" if one.client_s is not None else ""
        rows.append(
            (
                one.system + one.mark,
                str(len(one.latencies_s)),
                digits(1000 * p50),
                digits(1000 * p99),
                digits(1000 * max(one.latencies_s)),
                forward,
                f"{p50 / ours:.2f}" if ours else "",
                _ratio(one.computed, one.unique),
                client,
            )
        )
    if not rows:
        return ""
    head = (
        "system",
        "n",
        "p50 ms",
        "p99 ms",
        "max ms",
        "forward p50 ms",
        f"it ÷ {base}",
        "computed ÷ unique",
        "client CPU ms",
    )
    note = "Forward: the forward pass of the question's tokens alone, timed within the same requests."
    return f"## W4: one question on a cached document\n\n{note}\n\n{table(head, rows)}"


def _open_loop(series: Sequence[Series]) -> str:
    rows = []
    for one in series:
        if not one.latencies_s:
            rows.append((one.system + one.mark, one.phase, digits(one.groups_per_s), "", "", "", ""))
            continue
        p50, p99 = percentile(one.latencies_s, 50), percentile(one.latencies_s, 99)
        late = digits(1000 * one.late_s)
        numbers = (str(len(one.latencies_s)), digits(1000 * p50), digits(1000 * p99), late)
        rows.append((one.system + one.mark, one.phase, digits(one.groups_per_s), *numbers))
    if not rows:
        return ""
    head = ("system", "load", "requests/s", "n", "p50 ms", "p99 ms", "sent late by ms")
    return "## W7: open loop; latency from the moment a request was due\n\n" + table(head, rows)


def _cache(records: Sequence[CacheRecord]) -> str:
    rows = [
        (
            f"{one.share:.0%}",
            f"{one.pool_tokens:,}",
            f"{one.realised:.1%}",
            f"{one.optimum:.1%}",
            f"{100 * (one.optimum - one.realised):.1f}",
            f"{one.by_recency:.1%}",
            f"{one.by_frequency:.1%}",
            digits(one.rows_per_s),
        )
        for one in records
    ]
    if not rows:
        return ""
    head = ("pool", "tokens", "hit rate", "best possible (Belady)", "points short", "LRU", "LFU", "rows/s")
    note = (
        "LRU, LFU: what caches of whole documents reach that evict the least recently or the least often asked for;\n"
        "they know the past only, as ours does, and Belady's knows all requests ahead."
    )
    title = "## W6: a pool that holds a share of the documents; hits by document tokens"
    return f"{title}\n\n{note}\n\n{table(head, rows)}"


def _memory(records: Sequence[MemoryRecord]) -> str:
    sections = []
    for one in records:
        parts = (
            ("process with its libraries", one.base_bytes),
            ("weights", one.weight_bytes),
            ("pool", one.pool_bytes),
            ("workspace", one.workspace_bytes),
            ("sum", one.expected_bytes),
            (f"resident after {one.requests[-1]:,} requests", one.resident_bytes[-1]),
        )
        sections.append(
            f"## Memory, {one.system}\n\n"
            + table(("part", "MiB"), [(name, f"{size / 2**20:,.1f}") for name, size in parts])
            + f"\n\nLargest resident set ÷ sum: {one.excess:.2f}. "
            f"Growth over the second half of the requests: {_growth(one)}. "
            f"KV per token: {one.kv_bytes_per_token:,} bytes, {one.kv_bytes_by_formula:,} by formula."
        )
    return "\n\n".join(sections)


def _growth(record: MemoryRecord) -> str:
    growth = record.growth_bytes
    return "unknown, the pool was not full before" if growth is None else f"{growth:,.0f} bytes"


def _faults(records: Sequence[FaultRecord]) -> str:
    if not records:
        return "No faults: ours computed every position once."
    lines = [f"- {one.system}: {one.message}" for one in records]
    return "\n".join(("## FAULTS", "", *lines))


def _ratio(part: int | None, whole: int | None) -> str:
    return f"{part / whole:.3f}" if part is not None and whole else ""
