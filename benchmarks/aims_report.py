"""What was aimed at, and whether the run shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import aims
from benchmarks.comparison import LATENCY_WORKLOAD, OURS, Comparison
from benchmarks.profile_series import ProfileSeries
from benchmarks.records import CacheRecord, DriftRecord, MemoryRecord, Record
from benchmarks.series import Series
from benchmarks.summary import digits, percentile
from benchmarks.sweep import SweepPoint, attention_share
from benchmarks.tables import table

_Row = tuple[str, str, str, bool]
_OVER_HTTP = "ours-http"


def aims_section(
    records: Sequence[Record],
    series: Sequence[Series],
    best: Sequence[Comparison],
    profiles: Sequence[ProfileSeries],
    points: Sequence[SweepPoint],
) -> str:
    """Every aim of which the run measured something."""
    found = [
        *_ratios(best),
        *_latency(series),
        *_work(series),
        *_profile(profiles),
        *_sweep(points),
        *(row for record in records for row in _of_record(record)),
    ]
    if not found:
        return ""
    rows = [(name, wanted, got, "yes" if met else "NO") for name, wanted, got, met in found]
    return "## Aims\n\n" + table(("what", "aim", "measured", "met"), rows)


def _ratios(best: Sequence[Comparison]) -> Iterator[_Row]:
    for one in best:
        least = aims.LEAST_RATIO.get((one.workload, one.phase, one.own))
        if least is not None:
            name = f"{one.workload} {one.phase}: {one.own} ÷ best other ({one.other})"
            yield name, f"≥ {least}", str(one.ratio), one.ratio.median >= least


def _latency(series: Sequence[Series]) -> Iterator[_Row]:
    for one in series:
        if (one.workload, one.system) != (LATENCY_WORKLOAD, _OVER_HTTP):
            continue
        p50, p99 = percentile(one.latencies_s, 50), percentile(one.latencies_s, 99)
        yield (
            "W4: p99 ÷ p50 over HTTP",
            f"≤ {aims.MOST_P99_OVER_P50}",
            digits(p99 / p50),
            p99 <= aims.MOST_P99_OVER_P50 * p50,
        )
        if one.forwards_s:
            times = p50 / percentile(one.forwards_s, 50)
            yield (
                "W4: p50 over HTTP ÷ forward pass",
                f"≤ {aims.MOST_OVER_FORWARD}",
                digits(times),
                times <= aims.MOST_OVER_FORWARD,
            )


def _work(series: Sequence[Series]) -> Iterator[_Row]:
    shares = [one.computed / one.unique for one in series if one.system == OURS and one.computed and one.unique]
    if shares:
        low, high = min(shares), max(shares)
        yield "computed ÷ unique, all phases", "1.000", f"{low:.3f}–{high:.3f}", low == high == 1


def _profile(profiles: Sequence[ProfileSeries]) -> Iterator[_Row]:
    for one in profiles:
        workload, phase, system = one.name
        large = one.ceiling_share("linear_large")
        if (workload, phase, system) == ("W1", "cold", OURS) and large is not None:
            aim = aims.LEAST_LINEAR_SHARE
            yield "W1: linear layers of ≥ 512 rows ÷ calibration", f"≥ {aim:.0%}", f"{large:.0%}", large >= aim
        attention = one.rate("attend")
        if (workload, phase, system) == ("W3", "warm", OURS) and attention is not None:
            aim = aims.LEAST_ATTENTION_GFLOPS
            yield "W3 warm: attention, GFLOP/s", f"≥ {aim:.0f}", str(attention), attention.median >= aim
        most = aims.MOST_ELSE.get((workload, phase))
        if most is not None:
            share = one.everything_else
            got = f"{share.median:.0%} ({share.low:.0%}–{share.high:.0%})"
            yield f"{workload} {phase}: everything else, {system}", f"≤ {most:.0%}", got, share.median <= most


def _sweep(points: Sequence[SweepPoint]) -> Iterator[_Row]:
    if (share := attention_share(points)) is not None:
        yield (
            "sweep: slope explained by attention",
            f"≥ {aims.LEAST_SWEEP_SHARE:.0%}",
            f"{share:.0%}",
            share >= aims.LEAST_SWEEP_SHARE,
        )


def _of_record(record: Record) -> Iterator[_Row]:
    match record:
        case CacheRecord():
            short = 100 * (record.optimum - record.realised)
            most = aims.MOST_POINTS_SHORT
            yield f"W6, pool {record.share:.0%}: points short of Belady", f"≤ {most:.0f}", f"{short:.1f}", short <= most
        case MemoryRecord():
            by_formula = record.kv_bytes_per_token == record.kv_bytes_by_formula
            wanted = f"{record.kv_bytes_by_formula:,}"
            yield f"{record.system}: KV bytes a token", wanted, f"{record.kv_bytes_per_token:,}", by_formula
            most = aims.MOST_RESIDENT
            got = f"{record.excess:.2f}"
            yield f"{record.system}: resident set ÷ its parts", f"≤ {most}", got, record.excess <= most
            if record.growth_bytes is None:
                return
            growth = record.growth_bytes / record.expected_bytes
            name = f"{record.system}: growth over the second half of {record.requests[-1]:,} requests"
            yield name, f"≤ {aims.MOST_GROWTH:.0%}", f"{growth:.1%}", growth <= aims.MOST_GROWTH
        case DriftRecord(system=system):
            if system == OURS:
                yield (
                    "log-odds, mean difference",
                    f"≤ {aims.MOST_MEAN_DRIFT}",
                    f"{record.mean:.3f}",
                    record.mean <= aims.MOST_MEAN_DRIFT,
                )
                yield (
                    "log-odds, largest difference",
                    f"≤ {aims.MOST_DRIFT}",
                    f"{record.largest:.3f}",
                    record.largest <= aims.MOST_DRIFT,
                )
        case _:
            return
