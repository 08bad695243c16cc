"""A question's cost against the length of its cached document, and how much of it attention explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparison import OURS
from benchmarks.profile_series import ProfileSeries, seconds
from benchmarks.series import Series
from benchmarks.summary import digits, slope
from benchmarks.tables import table


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """Milliseconds of a question on a document of ``tokens``.

    Args:
        attention_ms: From the run with clocks; None where there was none.
        rest_ms: Everything else in that run.
    """

    tokens: int
    question_ms: float
    attention_ms: float | None
    rest_ms: float | None


def sweep_points(series: Sequence[Series], profiles: Sequence[ProfileSeries]) -> list[SweepPoint]:
    """Our points of the sweep, shortest document first."""
    profiled = {one.name[1]: one for one in profiles if one.name[0] == "SWEEP" and one.name[2] == OURS}
    points = []
    for one in series:
        if (one.workload, one.system) != ("SWEEP", OURS):
            continue
        profile = profiled.get(one.phase)
        attention = rest = None
        if profile is not None:
            attention = profile.median(lambda record: 1000 * seconds(record, "attend") / record.num_rows)
            whole = profile.median(lambda record: 1000 * record.wall_s / record.num_rows)
            rest = whole - attention
        points.append(
            SweepPoint(tokens=int(one.phase), question_ms=1000 / one.rate.median, attention_ms=attention, rest_ms=rest)
        )
    return sorted(points, key=lambda point: point.tokens)


def attention_share(points: Sequence[SweepPoint]) -> float | None:
    """Slope of attention's time over that of the whole question's, both from the run with clocks."""
    known = [(point.tokens, point.attention_ms, point.rest_ms) for point in points]
    parts = [
        (tokens, attention, rest) for tokens, attention, rest in known if attention is not None and rest is not None
    ]
    if len(parts) < 2:
        return None
    lengths = [tokens for tokens, _, _ in parts]
    attention = slope(lengths, [part for _, part, _ in parts])
    return attention / (attention + slope(lengths, [part for _, _, part in parts]))


def sweep_section(points: Sequence[SweepPoint]) -> str:
    """The points, their slope, and the share of the slope that is attention's."""
    if len(points) < 2:
        return ""
    rows = [
        (
            f"{point.tokens:,}",
            digits(point.question_ms),
            "" if point.attention_ms is None else digits(point.attention_ms),
            "" if point.rest_ms is None else digits(point.rest_ms),
        )
        for point in points
    ]
    head = ("document tokens", "ms a question", "attention ms (with clocks)", "everything else ms (with clocks)")
    rise = slope([point.tokens for point in points], [point.question_ms for point in points])
    lines = [
        "## Sweep: a question's cost against the length of its cached document",
        "",
        table(head, rows),
        "",
        f"{digits(1000 * rise)} ms more for 1,000 tokens more.",
    ]
    if (share := attention_share(points)) is not None:
        lines.append(f"Attention alone explains {share:.0%} of the slope in the run with clocks.")
    return "\n".join(lines)
