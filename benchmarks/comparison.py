"""Our systems beside the others, round by round.

In a round two systems do the same work within seconds of each other, so a machine whose speed
swings does not decide between them: the headline is the median of the rounds' ratios, not the
ratio of two medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.records import PhaseRecord
from benchmarks.summary import Spread, percentile, spread

OURS = "ours"
LATENCY_WORKLOAD = "W4"
COMPARED = ("W1", "W2", "W3", LATENCY_WORKLOAD, "W5", "SWEEP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One repeat of a phase on both systems.

    Args:
        ratio: How many times as fast as the other system ours was.
        own_gflops: The calibration around our block.
        other_gflops: The calibration around the other's.
        idle: Nothing disturbed either block.
    """

    repeat: int
    ratio: float
    own_gflops: float
    other_gflops: float
    idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A phase on one of our systems and on another; at least one round."""

    workload: str
    phase: str
    own: str
    other: str
    rounds: tuple[Round, ...]

    @property
    def ratio(self) -> Spread:
        return spread([one.ratio for one in self.rounds])

    @property
    def gflops(self) -> tuple[float, float]:
        """Median calibration around our blocks and around the other's."""
        return (
            statistics.median(one.own_gflops for one in self.rounds),
            statistics.median(one.other_gflops for one in self.rounds),
        )

    @property
    def num_idle(self) -> int:
        return sum(one.idle for one in self.rounds)


def is_own(system: str) -> bool:
    """Whether ``system`` is this project's, in whatever settings."""
    return system == OURS or system.startswith(f"{OURS}-")


def speed(record: PhaseRecord) -> float:
    """What a ratio is taken of: rows a second, or where latency counts, requests in a median latency."""
    if record.workload == LATENCY_WORKLOAD:
        return 1 / percentile(record.result.latencies_s, 50)
    return record.rows_per_s


def compare(records: Sequence[PhaseRecord], own: str, other: str) -> list[Comparison]:
    """Every phase that both systems ran in the same round, in the order in which phases first came."""
    by_place = {(record.workload, record.phase, record.system, record.repeat): record for record in records}
    phases = dict.fromkeys((record.workload, record.phase) for record in records if record.workload in COMPARED)
    repeats = sorted({record.repeat for record in records})
    comparisons = []
    for workload, phase in phases:
        rounds = []
        for repeat in repeats:
            first = by_place.get((workload, phase, own, repeat))
            second = by_place.get((workload, phase, other, repeat))
            if first and second:
                rounds.append(_round(first, second))
        if rounds:
            comparisons.append(Comparison(workload=workload, phase=phase, own=own, other=other, rounds=tuple(rounds)))
    return comparisons


def against_best(records: Sequence[PhaseRecord]) -> list[Comparison]:
    """Each of our systems, phase by phase, beside the fastest other one: that with the least median ratio."""
    systems = dict.fromkeys(record.system for record in records)
    own = [system for system in systems if is_own(system)]
    others = [system for system in systems if not is_own(system)]
    found: dict[tuple[str, str, str], Comparison] = {}
    for one in (comparison for mine in own for other in others for comparison in compare(records, mine, other)):
        place = (one.workload, one.phase, one.own)
        if place not in found or one.ratio.median < found[place].ratio.median:
            found[place] = one
    phases = list(dict.fromkeys((record.workload, record.phase) for record in records))
    return sorted(found.values(), key=lambda one: (phases.index((one.workload, one.phase)), own.index(one.own)))


def _round(first: PhaseRecord, second: PhaseRecord) -> Round:
    return Round(
        repeat=first.repeat,
        ratio=speed(first) / speed(second),
        own_gflops=first.gemm_gflops,
        other_gflops=second.gemm_gflops,
        idle=first.idle and second.idle,
    )
