from __future__ import annotations

import pytest

from benchmarks.messages import OperationCost, Profile
from benchmarks.profile_series import profile_series
from benchmarks.records import ProfileRecord

STAGES = {"schedule": 0.02, "prefill": 0.8, "readout": 0.02, "commit": 0.01}


def profiled(
    linear_s: float, *, repeat: int = 0, system: str = "ours", calibration: float = 1000.0, wall_s: float = 1.0
) -> ProfileRecord:
    operations = {
        "linear": OperationCost(linear_s, 10, 200_000_000_000),
        "attend": OperationCost(0.1, 4, 40_000_000_000),
        "swiglu": OperationCost(0.05, 4, 0),
        "label_logits": OperationCost(0.01, 1, 0),
    }
    return ProfileRecord(
        workload="W1",
        phase="cold",
        system=system,
        repeat=repeat,
        num_rows=10,
        wall_s=wall_s,
        calibration=(calibration, calibration),
        profile=Profile(operations=operations, stages=STAGES, steps=4),
    )


def test_repeats_of_a_phase_on_a_system_are_one_series() -> None:
    found = profile_series([profiled(0.5), profiled(0.4, repeat=1), profiled(0.5, system="ours-http")])

    assert [(one.name, len(one.records)) for one in found] == [
        (("W1", "cold", "ours"), 2),
        (("W1", "cold", "ours-http"), 1),
    ]


def test_share_of_the_ceiling_is_taken_repeat_by_repeat() -> None:
    # half the rate at half the calibration is the same share
    (found,) = profile_series([profiled(0.5, calibration=800.0), profiled(1.0, calibration=400.0, wall_s=2.0)])

    assert found.ceiling_share("linear") == pytest.approx(0.5)
    rate = found.rate("linear")
    assert rate is not None
    assert (rate.low, rate.high) == (200.0, 400.0)


def test_operation_that_never_ran_has_no_rate() -> None:
    (found,) = profile_series([profiled(0.5)])

    assert found.rate("linear_large") is None
    assert found.ceiling_share("linear_large") is None


def test_everything_else_is_what_neither_linear_layers_nor_attention_took() -> None:
    (found,) = profile_series([profiled(0.5), profiled(0.6, repeat=1), profiled(0.7, repeat=2)])

    assert found.everything_else.median == pytest.approx(0.3)
    assert (found.everything_else.low, found.everything_else.high) == pytest.approx((0.2, 0.4))


def test_shares_of_the_wall_time_add_up() -> None:
    (found,) = profile_series([profiled(0.5)])

    shares = found.stage_shares

    assert shares["other"] == pytest.approx(0.05)
    assert shares["rest"] == pytest.approx(0.8 - 0.5 - 0.1 - 0.05)
    assert found.share("linear") + found.share("attend") + sum(shares.values()) == pytest.approx(1.0)
    assert found.other_operations == [("swiglu", 0.05), ("label_logits", 0.01)]
