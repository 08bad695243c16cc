from __future__ import annotations

import pytest

from benchmarks.messages import OperationCost, Profile
from benchmarks.profile_series import profile_series
from benchmarks.records import ProfileRecord
from benchmarks.series import phase_series
from benchmarks.sweep import attention_share, sweep_points, sweep_section
from tests.helpers.phase_records import phase_record

STAGES = {"schedule": 0.0, "prefill": 1.0, "readout": 0.0, "commit": 0.0}


def profiled(tokens: int, *, attend_s: float, wall_s: float) -> ProfileRecord:
    profile = Profile(operations={"attend": OperationCost(attend_s, 1, 1)}, stages=STAGES, steps=1)
    return ProfileRecord(
        workload="SWEEP",
        phase=f"{tokens}",
        system="ours",
        repeat=0,
        num_rows=10,
        wall_s=wall_s,
        calibration=(900.0, 900.0),
        profile=profile,
    )


def test_points_come_by_length_with_milliseconds_a_question() -> None:
    walls = {1000: 2.5, 250: 1.0, 500: 1.5}
    series = phase_series([phase_record("ours", wall, workload="SWEEP", name=f"{n}") for n, wall in walls.items()])
    profiles = profile_series([profiled(250, attend_s=0.4, wall_s=1.1)])

    points = sweep_points(series, profiles)

    assert [(point.tokens, point.question_ms) for point in points] == [(250, 100.0), (500, 150.0), (1000, 250.0)]
    assert (points[0].attention_ms, points[0].rest_ms) == pytest.approx((40.0, 70.0))
    assert points[1].attention_ms is None


def test_slope_is_told_apart_into_attention_and_the_rest() -> None:
    lengths = (250, 500, 1000)
    series = phase_series([phase_record("ours", 1 + n / 1000, workload="SWEEP", name=f"{n}") for n in lengths])
    # attention rises by three parts where everything else rises by one
    profiles = profile_series([profiled(n, attend_s=0.003 * n, wall_s=1 + 0.004 * n) for n in lengths])

    points = sweep_points(series, profiles)
    text = sweep_section(points)

    assert attention_share(points) == pytest.approx(0.75)
    assert "100 ms more for 1,000 tokens more." in text
    assert "Attention alone explains 75% of the slope" in text


def test_sweep_without_clocks_has_a_slope_and_no_explanation() -> None:
    series = phase_series([phase_record("ours", 1.0, workload="SWEEP", name=name) for name in ("250", "500")])

    points = sweep_points(series, [])

    assert attention_share(points) is None
    assert "explains" not in sweep_section(points)


def test_one_length_is_no_sweep() -> None:
    series = phase_series([phase_record("ours", 1.0, workload="SWEEP", name="250")])

    assert sweep_section(sweep_points(series, [])) == ""
