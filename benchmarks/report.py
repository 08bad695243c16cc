"""The records of a run as tables that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.flops import ModelCost
from benchmarks.profile_report import profile_section
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
from benchmarks.summary import digits, percentile, slope
from benchmarks.tables import table

OURS = "ours"
_THROUGHPUT = ("W1", "W2", "W3", "W5", "SWEEP")
_QUESTION_TOKENS = 24


def report(records: Sequence[Record]) -> str:
    """Everything that was measured, as Markdown.

    Raises:
        ValueError: the run did not come to its end.
    """
    ceiling = ceiling_gflops(records)
    run = next(record for record in records if isinstance(record, RunRecord))
    cost = run.cost
    series = phase_series([record for record in records if isinstance(record, PhaseRecord)])
    profiles = [record for record in records if isinstance(record, ProfileRecord)]
    sections = [
        _circumstances(run, records, ceiling),
        _scores([record for record in records if isinstance(record, DriftRecord)]),
        _throughput([one for one in series if one.workload in _THROUGHPUT], cost, ceiling),
        _latency([one for one in series if one.workload == "W4"]),
        _open_loop([one for one in series if one.workload == "W7"]),
        _cache([record for record in records if isinstance(record, CacheRecord)]),
        profile_section(profiles, ceiling),
        _sweep([one for one in series if one.workload == "SWEEP" and one.system == OURS], profiles, cost),
        _memory([record for record in records if isinstance(record, MemoryRecord)]),
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


def _throughput(series: Sequence[Series], cost: ModelCost, ceiling: float) -> str:
    if not series:
        return ""
    ours = {(one.workload, one.phase): one.rate.median for one in series if one.system == OURS}
    rows = []
    for one in series:
        base = ours.get((one.workload, one.phase))
        rows.append(
            (
                f"{one.workload} {one.phase}",
                one.system,
                f"{one.rate}{one.mark}",
                str(one.rate.count),
                f"{base / one.rate.median:.2f}" if base else "",
                _ratio(one.computed, one.received),
                _ratio(one.computed, one.unique),
                _roof(one, cost, ceiling),
            )
        )
    text = table(
        ("workload", "system", "rows/s", "n", "ours ÷ it", "computed ÷ received", "computed ÷ unique", "of the roof"),
        rows,
    )
    return f"## Throughput\n\nMedian (least–greatest) of n repeats; {_MARKS}\n\n{text}"


_MARKS = "* the machine was not idle in any repeat; † only the first rows were run."


def _roof(one: Series, cost: ModelCost, ceiling: float) -> str:
    """Share of the rate at which every floating-point operation ran at the calibration rate."""
    if one.unique is None or one.attended is None:
        return ""
    flop = cost.linear_flop(one.unique) + cost.attention_flop(one.attended)
    least_s = flop / (ceiling * 1e9)
    return f"{least_s * one.rate.median / one.rows_run:.0%}"


def _latency(series: Sequence[Series]) -> str:
    rows = []
    base = next((name for name in ("ours-http", OURS) if any(one.system == name for one in series)), "")
    ours = next((percentile(one.latencies_s, 50) for one in series if one.system == base), None)
    for one in series:
        p50, p99 = percentile(one.latencies_s, 50), percentile(one.latencies_s, 99)
        client = f"{1000 * one.client_s / one.rows_run:.2f}" if one.client_s is not None else ""
        rows.append(
            (
                one.system + one.mark,
                str(len(one.latencies_s)),
                digits(1000 * p50),
                digits(1000 * p99),
                digits(1000 * max(one.latencies_s)),
                f"{p50 / ours:.2f}" if ours else "",
                _ratio(one.computed, one.unique),
                client,
            )
        )
    if not rows:
        return ""
    head = ("system", "n", "p50 ms", "p99 ms", "max ms", f"it ÷ {base}", "computed ÷ unique", "client CPU ms")
    return "## W4: one question on a cached document\n\n" + table(head, rows)


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
            digits(one.rows_per_s),
        )
        for one in records
    ]
    if not rows:
        return ""
    head = ("pool", "tokens", "hit rate", "best possible (Belady)", "points short", "rows/s")
    return "## W6: a pool that holds a share of the documents; hits by document tokens\n\n" + table(head, rows)


def _sweep(series: Sequence[Series], profiles: Sequence[ProfileRecord], cost: ModelCost) -> str:
    """Time of a question against the length of its document, beside what attention explains."""
    if len(series) < 2:
        return ""
    lengths = [int(one.phase) for one in series]
    times = [1000 / one.rate.median for one in series]
    rise = slope(lengths, times)
    lines = [
        "## Sweep: a question's cost against the length of its cached document",
        "",
        table(
            ("document tokens", "ms a question"),
            [(f"{length:,}", digits(time)) for length, time in zip(lengths, times, strict=True)],
        ),
        "",
        f"{digits(1000 * rise)} ms more for 1,000 tokens more.",
    ]
    attend = next(
        (one.profile.operations["attend"] for one in profiles if (one.workload, one.phase) == ("W3", "warm")), None
    )
    if attend:
        rate = attend.flop / attend.seconds
        alone = 1000 * 1000 * cost.attention_flop(_QUESTION_TOKENS) / rate
        lines.append(
            f"Attention alone explains {digits(alone)} ms of them, at the {digits(rate / 1e9)} GFLOP/s of W3 warm."
        )
    return "\n".join(lines)


def _memory(records: Sequence[MemoryRecord]) -> str:
    sections = []
    for one in records:
        parts = (
            ("process before the model", one.base_bytes),
            ("weights", one.weight_bytes),
            ("pool", one.pool_bytes),
            ("workspace", one.workspace_bytes),
            ("sum", one.expected_bytes),
            (f"resident after {one.requests[-1]:,} requests", one.resident_bytes[-1]),
        )
        half = len(one.requests) // 2
        growth = slope(one.requests[half:], one.resident_bytes[half:]) if len(one.requests) - half > 1 else 0.0
        sections.append(
            "## Memory\n\n"
            + table(("part", "MiB"), [(name, f"{size / 2**20:,.1f}") for name, size in parts])
            + f"\n\nResident ÷ sum: {one.resident_bytes[-1] / one.expected_bytes:.2f}. "
            f"Growth over the second half: {growth:,.0f} bytes a request. "
            f"KV per token: {one.kv_bytes_per_token:,} bytes, {one.kv_bytes_by_formula:,} by formula."
        )
    return "\n\n".join(sections)


def _faults(records: Sequence[FaultRecord]) -> str:
    if not records:
        return "No faults: ours computed every position once."
    lines = [f"- {one.system}: {one.message}" for one in records]
    return "\n".join(("## FAULTS", "", *lines))


def _ratio(part: int | None, whole: int | None) -> str:
    return f"{part / whole:.3f}" if part is not None and whole else ""
