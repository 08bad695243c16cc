"""Where the time of a phase went, in words and shares."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.profile_series import ProfileSeries
from benchmarks.summary import digits
from benchmarks.tables import table

_RATES = (
    *("phase", "system", "n", "steps", "forward ms a step", "linear GFLOP/s", "of ceiling", "≥ 512 rows", "of ceiling"),
    *("attention GFLOP/s", "of ceiling", "everything else"),
)
_SHARES = (
    "phase",
    "system",
    "wall s",
    "linear",
    "attention",
    "other operations",
    "forward rest",
    "bookkeeping",
    "idle",
)
_NAMED = 4


def profile_section(profiles: Sequence[ProfileSeries]) -> str:
    """Rates of linear layers and attention, and shares of everything else."""
    if not profiles:
        return ""
    return "\n".join(
        (
            "## Profile of ours (a run of its own, with clocks around operations)",
            "",
            "Medians of n repeats; the ceiling is the calibration around the same repeat. Where the kernels do them in",
            "one call, the sum, the norm and the gate that belong to a linear layer count as its time.",
            "",
            table(_RATES, [_rates(one) for one in profiles]),
            "",
            "Shares of the wall time. Forward rest: Python and copies between operations;",
            "bookkeeping: scheduling, readout and commit; idle: the engine had no step to run",
            "(over HTTP: the client, HTTP, parsing and tokenisation).",
            "",
            table(_SHARES, [_shares(one) for one in profiles]),
        )
    )


def _rates(one: ProfileSeries) -> tuple[str, ...]:
    workload, phase, system = one.name
    return (
        f"{workload} {phase}",
        system,
        str(len(one.records)),
        f"{one.median(lambda record: record.profile.steps):.0f}",
        digits(1000 * one.median(lambda record: record.profile.stages["prefill"] / max(1, record.profile.steps))),
        *_rate(one, "linear"),
        *_rate(one, "linear_large"),
        *_rate(one, "attend"),
        f"{one.everything_else.median:.0%}",
    )


def _rate(one: ProfileSeries, operation: str) -> tuple[str, str]:
    rate, share = one.rate(operation), one.ceiling_share(operation)
    return ("", "") if rate is None or share is None else (str(rate), f"{share:.0%}")


def _shares(one: ProfileSeries) -> tuple[str, ...]:
    workload, phase, system = one.name
    stages = one.stage_shares
    named = ", ".join(f"{name} {share:.1%}" for name, share in one.other_operations[:_NAMED])
    return (
        f"{workload} {phase}",
        system,
        digits(one.median(lambda record: record.wall_s)),
        f"{one.share('linear'):.1%}",
        f"{one.share('attend'):.1%}",
        f"{stages['other']:.1%} ({named})",
        *(f"{stages[name]:.1%}" for name in ("rest", "bookkeeping", "idle")),
    )
