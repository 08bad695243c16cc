"""Numbers that stand for many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some repeats."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{digits(self.median)} ({digits(self.low)}–{digits(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """The spread of ``values``, at least one."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The least of ``values`` that at least ``percent`` per cent of them do not exceed (nearest rank)."""
    if not values or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} of {len(values)} values; wanted 0 < percent <= 100 and a value")
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Rise of the least-squares line through the points."""
    return statistics.linear_regression(xs, ys).slope


@dataclass(frozen=True, slots=True)
class Drift:
    """How far two systems' scores of the same prompts lie apart, in log-odds."""

    mean: float
    largest: float
    flips: int  # prompts on which they disagree about the sign


def drift(scores: Sequence[float], reference: Sequence[float]) -> Drift:
    """The drift of ``scores`` from ``reference``, pair by pair."""
    gaps = [abs(score - wanted) for score, wanted in zip(scores, reference, strict=True)]
    flips = sum((score > 0) != (wanted > 0) for score, wanted in zip(scores, reference, strict=True))
    return Drift(statistics.fmean(gaps), max(gaps), flips)


def digits(value: float) -> str:
    """``value`` with three digits that count; all digits of the whole part."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
