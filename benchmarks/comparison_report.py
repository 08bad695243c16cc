"""Our systems beside the best other one, and every round that led to it."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.aims import LEAST_RATIO
from benchmarks.comparison import Comparison
from benchmarks.flops import ModelCost
from benchmarks.series import Series
from benchmarks.summary import digits
from benchmarks.tables import table

_INTRODUCTION = (
    "How many times as fast as the other system: median (least–greatest) of the ratios of rounds; in W4 by median\n"
    "latency. Beside it the calibration around our blocks and around the other's, in GFLOP/s. The roof is the rate at\n"
    "which all floating-point operations of the phase ran at the calibration rate."
)


def roof_rows_per_s(series: Series, cost: ModelCost, gflops: float) -> float | None:
    """Rows a second at which the phase would run if every floating-point operation ran at ``gflops``.

    None where it is not known what the phase must compute.
    """
    if not series.unique or series.attended is None:
        return None
    flop = cost.linear_flop(series.unique) + cost.attention_flop(series.attended)
    return gflops * 1e9 * series.rows_run / flop


def roof_share(series: Series, cost: ModelCost) -> float | None:
    """Median over repeats of the rate reached, as a share of the roof at the calibration around the repeat."""
    roof = roof_rows_per_s(series, cost, 1.0)
    return None if roof is None else series.pace.median / roof


def best_section(comparisons: Sequence[Comparison], series: Sequence[Series], cost: ModelCost) -> str:
    """Ratio to the best other system of each phase, what is aimed at, and the distance to the roof."""
    if not comparisons:
        return ""
    by_place = {(one.workload, one.phase, one.system): one for one in series}
    rows = []
    for one in comparisons:
        mine = by_place[one.workload, one.phase, one.own]
        aim = LEAST_RATIO.get((one.workload, one.phase, one.own))
        rows.append(
            (
                f"{one.workload} {one.phase}",
                one.own,
                one.other,
                str(one.ratio),
                f"≥ {aim}" if aim else "",
                f"{len(one.rounds)} ({one.num_idle})",
                " / ".join(map(digits, one.gflops)),
                digits(mine.rate.median),
                *roof_cells(mine, cost),
            )
        )
    head = ("phase", "ours", "best other", "ratio", "aim", "rounds (idle)", "calibration", "rows/s", "roof", "of it")
    return f"## Against the best other system\n\n{_INTRODUCTION}\n\n{table(head, rows)}"


def roof_cells(series: Series, cost: ModelCost) -> tuple[str, str]:
    """The roof at the median calibration of the series, and the share of it that was reached."""
    roof, share = roof_rows_per_s(series, cost, series.gemm_gflops), roof_share(series, cost)
    return ("", "") if roof is None or share is None else (digits(roof), f"{share:.0%}")


def rounds_section(comparisons: Sequence[Comparison]) -> str:
    """Ratio and calibrations of every round."""
    rows = [
        (
            f"{comparison.workload} {comparison.phase}",
            comparison.own,
            comparison.other,
            str(one.repeat + 1),
            f"{digits(one.ratio)}{'' if one.idle else '*'}",
            digits(one.own_gflops),
            digits(one.other_gflops),
        )
        for comparison in comparisons
        for one in comparison.rounds
    ]
    if not rows:
        return ""
    head = ("phase", "ours", "other", "round", "ratio", "calibration around ours", "around the other")
    return f"## Rounds\n\n* the machine was not idle around both.\n\n{table(head, rows)}"
