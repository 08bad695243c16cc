"""Where the time of a phase went, in words and shares."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.messages import OperationCost
from benchmarks.records import ProfileRecord
from benchmarks.summary import digits
from benchmarks.tables import table

_COUNTED_APART = ("linear", "linear_large", "attend")
_NOTHING = OperationCost(0.0, 0, 0)


def profile_section(records: Sequence[ProfileRecord], ceiling: float) -> str:
    """Rates of linear layers and attention, and shares of everything else."""
    if not records:
        return ""
    rates, shares = [], []
    for one in records:
        operations = one.profile.operations
        linear, attend = operations.get("linear", _NOTHING), operations.get("attend", _NOTHING)
        large = operations.get("linear_large", _NOTHING)
        name = f"{one.workload} {one.phase}"
        rates.append(
            (
                name,
                f"{one.profile.steps}",
                digits(1000 * one.profile.stages["prefill"] / max(1, one.profile.steps)),
                *_rate(linear, ceiling),
                *_rate(large, ceiling),
                *_rate(attend, ceiling),
                f"{1 - (linear.seconds + attend.seconds) / one.wall_s:.0%}",
            )
        )
        shares.append((name, digits(one.wall_s), *_shares(one)))
    rate_head = (
        "phase",
        "steps",
        "forward ms a step",
        "linear GFLOP/s",
        "of ceiling",
        "≥ 512 rows",
        "of ceiling",
        "attention GFLOP/s",
        "of ceiling",
        "everything else",
    )
    share_head = ("phase", "wall s", "linear", "attention", "other operations", "forward rest", "bookkeeping", "idle")
    return "\n".join(
        (
            "## Profile of ours (a run of its own, with clocks around operations)",
            "",
            table(rate_head, rates),
            "",
            "Shares of the wall time. Forward rest: Python and copies between operations;",
            "bookkeeping: scheduling, readout and commit; idle: the engine had no step to run.",
            "",
            table(share_head, shares),
        )
    )


def _rate(cost: OperationCost, ceiling: float) -> tuple[str, str]:
    if not cost.calls:
        return "", ""
    rate = cost.flop / cost.seconds / 1e9
    return digits(rate), f"{rate / ceiling:.0%}"


def _shares(one: ProfileRecord) -> list[str]:
    operations, stages = one.profile.operations, one.profile.stages
    linear = operations.get("linear", _NOTHING).seconds
    attend = operations.get("attend", _NOTHING).seconds
    readout = sum(operations.get(name, _NOTHING).seconds for name in ("label_logits", "log_sum_exp"))
    apart = {name: cost.seconds for name, cost in operations.items() if name not in _COUNTED_APART}
    other = sum(apart.values()) - readout
    rest = stages["prefill"] - linear - attend - other
    bookkeeping = stages["schedule"] + stages["readout"] + stages["commit"]
    idle = one.wall_s - stages["prefill"] - bookkeeping
    named = sorted(apart.items(), key=lambda item: -item[1])[:4]
    detail = ", ".join(f"{name} {seconds / one.wall_s:.1%}" for name, seconds in named)
    shares = [f"{seconds / one.wall_s:.1%}" for seconds in (linear, attend, other, rest, bookkeeping, idle)]
    shares[2] += f" ({detail})"
    return shares
