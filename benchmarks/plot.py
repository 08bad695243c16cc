"""A picture of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.profile_series import profile_series
from benchmarks.records import PhaseRecord, ProfileRecord, Record, RunRecord, ceiling_gflops
from benchmarks.series import Series, phase_series
from benchmarks.summary import percentile
from benchmarks.sweep import SweepPoint, sweep_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS = ("W1", "W2", "W3", "W5")
_DPI = 120


def draw(records: Sequence[Record], path: Path) -> bool:
    """Write throughput, latency and the sweep, as far as they were measured, to ``path`` (PNG).

    False if none of them was, and then there is no picture.
    """
    series = phase_series([record for record in records if isinstance(record, PhaseRecord)])
    run = next(record for record in records if isinstance(record, RunRecord))
    bars = [one for one in series if one.workload in _BARS]
    latency = [one for one in series if one.workload == "W4"]
    open_loop = [one for one in series if one.workload == "W7" and one.latencies_s]
    sweep = [one for one in series if one.workload == "SWEEP"]
    points = sweep_points(series, profile_series([record for record in records if isinstance(record, ProfileRecord)]))
    panels = [
        (panel, part)
        for panel, part in ((_bars, bars), (_latency, latency), (_open_loop, open_loop), (_sweep, sweep))
        if part
    ]
    if not panels:
        return False
    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 5), squeeze=False)
    for axis, (panel, part) in zip(axes[0], panels, strict=True):
        panel(axis, part)
        if panel is _sweep:
            _attention(axis, points)
            axis.legend(fontsize=8)
    figure.suptitle(
        f"{run.model}, {run.size} workloads, {run.machine['processor']}\n{run.threads} threads, "
        f"{ceiling_gflops(records):.0f} GFLOP/s, {run.date}",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return True


def _bars(axis: Axes, series: Sequence[Series]) -> None:
    phases = list(dict.fromkeys(f"{one.workload} {one.phase}" for one in series))
    systems = list(dict.fromkeys(one.system for one in series))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        part = [one for one in series if one.system == system]
        lefts = [phases.index(f"{one.workload} {one.phase}") + (place + 0.5) * width - 0.4 for one in part]
        medians = [one.rate.median for one in part]
        lows = [one.rate.median - one.rate.low for one in part]
        highs = [one.rate.high - one.rate.median for one in part]
        axis.bar(lefts, medians, width, yerr=[lows, highs], capsize=2, label=system)
    axis.set_xticks(range(len(phases)), phases)
    axis.set_yscale("log")
    axis.set_ylabel("rows a second (median, least to greatest)")
    axis.legend(fontsize=8)


def _latency(axis: Axes, series: Sequence[Series]) -> None:
    for one in series:
        ordered = sorted(1000 * latency for latency in one.latencies_s)
        axis.plot(ordered, [100 * (place + 1) / len(ordered) for place in range(len(ordered))], label=one.system)
    axis.set_xscale("log")
    axis.set_xlabel("W4: ms for one question on a cached document")
    axis.set_ylabel("% of requests")
    axis.legend(fontsize=8)


def _open_loop(axis: Axes, series: Sequence[Series]) -> None:
    for system in dict.fromkeys(one.system for one in series):
        part = [one for one in series if one.system == system]
        loads = [one.phase for one in part]
        for percent, style in ((50, "o-"), (99, "s--")):
            values = [1000 * percentile(one.latencies_s, percent) for one in part]
            axis.plot(loads, values, style, label=f"{system} p{percent}")
    axis.set_yscale("log")
    axis.set_xlabel("W7: load, of each system's capacity")
    axis.set_ylabel("ms from the moment a request was due")
    axis.legend(fontsize=8)


def _sweep(axis: Axes, series: Sequence[Series]) -> None:
    for system in dict.fromkeys(one.system for one in series):
        part = [one for one in series if one.system == system]
        axis.plot([int(one.phase) for one in part], [1000 / one.rate.median for one in part], "o-", label=system)
    axis.set_xlabel("tokens of the cached document")
    axis.set_ylabel("ms a question of 24 tokens")
    axis.set_ylim(bottom=0)


def _attention(axis: Axes, points: Sequence[SweepPoint]) -> None:
    known = [(point.tokens, point.attention_ms) for point in points if point.attention_ms is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "k:", label="attention of ours (with clocks)")
