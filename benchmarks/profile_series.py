"""The repeats of one profiled phase, together, as rates and shares."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.messages import OperationCost
from benchmarks.records import ProfileRecord
from benchmarks.summary import Spread, spread

_NOTHING = OperationCost(0.0, 0, 0)
_COUNTED_APART = ("linear", "linear_large", "attend")
_READOUT = ("label_logits", "log_sum_exp")


@dataclass(frozen=True, slots=True)
class ProfileSeries:
    """Profiles of one phase on one system, at least one; every number is the median of theirs."""

    records: tuple[ProfileRecord, ...]

    @property
    def name(self) -> tuple[str, str, str]:
        """Workload, phase and system."""
        return self.records[0].workload, self.records[0].phase, self.records[0].system

    def median(self, of: Callable[[ProfileRecord], float]) -> float:
        return statistics.median(map(of, self.records))

    def rate(self, operation: str) -> Spread | None:
        """GFLOP/s of an operation; None if it never ran."""
        costs = [one.profile.operations.get(operation, _NOTHING) for one in self.records]
        return spread([gflops(cost) for cost in costs]) if all(cost.calls for cost in costs) else None

    def ceiling_share(self, operation: str) -> float | None:
        """Rate of an operation over the calibration around the same repeat."""
        if self.rate(operation) is None:
            return None
        return self.median(lambda one: gflops(one.profile.operations[operation]) / one.gemm_gflops)

    def share(self, operation: str) -> float:
        """Part of the wall time."""
        return self.median(lambda one: seconds(one, operation) / one.wall_s)

    @property
    def everything_else(self) -> Spread:
        """Part of the wall time that goes to neither linear layers nor attention."""
        return spread([1 - (seconds(one, "linear") + seconds(one, "attend")) / one.wall_s for one in self.records])

    @property
    def other_operations(self) -> list[tuple[str, float]]:
        """Parts of the wall time by name, the largest first; readout is among them."""
        names = {name for one in self.records for name in one.profile.operations} - set(_COUNTED_APART)
        return sorted(((name, self.share(name)) for name in names), key=lambda item: -item[1])

    @property
    def stage_shares(self) -> dict[str, float]:
        """Parts of the wall time: ``other`` operations, the ``rest`` of the forward pass, ``bookkeeping``, ``idle``."""
        return {
            "other": self.median(lambda one: _other(one) / one.wall_s),
            "rest": self.median(
                lambda one: (
                    (one.profile.stages["prefill"] - seconds(one, "linear") - seconds(one, "attend") - _other(one))
                    / one.wall_s
                )
            ),
            "bookkeeping": self.median(lambda one: _bookkeeping(one) / one.wall_s),
            "idle": self.median(lambda one: 1 - (one.profile.stages["prefill"] + _bookkeeping(one)) / one.wall_s),
        }


def profile_series(records: Sequence[ProfileRecord]) -> list[ProfileSeries]:
    """Series by workload, phase and system, in the order in which these first came."""
    grouped: defaultdict[tuple[str, str, str], list[ProfileRecord]] = defaultdict(list)
    for record in records:
        grouped[record.workload, record.phase, record.system].append(record)
    return [ProfileSeries(tuple(found)) for found in grouped.values()]


def gflops(cost: OperationCost) -> float:
    return cost.flop / cost.seconds / 1e9


def seconds(record: ProfileRecord, operation: str) -> float:
    return record.profile.operations.get(operation, _NOTHING).seconds


def _other(record: ProfileRecord) -> float:
    """Seconds of operations within the forward pass other than linear layers and attention."""
    return sum(
        cost.seconds for name, cost in record.profile.operations.items() if name not in (*_COUNTED_APART, *_READOUT)
    )


def _bookkeeping(record: ProfileRecord) -> float:
    stages = record.profile.stages
    return stages["schedule"] + stages["readout"] + stages["commit"]
