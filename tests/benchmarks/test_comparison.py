from __future__ import annotations

import pytest

from benchmarks.comparison import against_best, compare, is_own, speed
from benchmarks.records import PhaseRecord
from tests.helpers.phase_records import phase_record as phase


def test_ratio_is_the_median_of_the_rounds_not_the_ratio_of_two_medians() -> None:
    # the machine is three times as slow in the second round, and a little slower in the third
    ours = [phase("ours", wall, repeat=repeat) for repeat, wall in enumerate((1.0, 3.0, 1.5))]
    other = [phase("vllm", wall, repeat=repeat) for repeat, wall in enumerate((2.0, 6.0, 1.5))]

    (found,) = compare([*ours, *other], "ours", "vllm")

    assert [one.ratio for one in found.rounds] == pytest.approx([2.0, 2.0, 1.0])
    assert (found.ratio.median, found.ratio.low, found.ratio.high) == pytest.approx((2.0, 1.0, 2.0))


def test_round_that_one_of_the_two_missed_is_left_out() -> None:
    records = [phase("ours", 1.0, repeat=0), phase("ours", 1.0, repeat=1), phase("vllm", 2.0, repeat=1)]

    (found,) = compare(records, "ours", "vllm")

    assert [one.repeat for one in found.rounds] == [1]


def test_round_keeps_the_calibration_around_either_block_and_whether_both_were_idle() -> None:
    records = [
        phase("ours", 1.0, calibration=(800.0, 900.0)),
        phase("vllm", 1.0, calibration=(500.0, 700.0), idle=False),
    ]

    (found,) = compare(records, "ours", "vllm")

    assert found.gflops == (850.0, 600.0)
    assert found.num_idle == 0


def test_latency_is_compared_by_its_median() -> None:
    slow, fast = (
        phase(system, 1.0, workload="W4", name="warm", latencies_s=latencies)
        for system, latencies in (("vllm", (0.03, 0.03, 9.0)), ("ours-http", (0.01, 0.01, 0.01)))
    )

    (found,) = compare([slow, fast], "ours-http", "vllm")

    assert found.ratio.median == pytest.approx(3.0)
    assert speed(slow) == pytest.approx(1 / 0.03)


def test_best_other_system_is_the_one_that_comes_closest_and_never_one_of_ours() -> None:
    walls = {"ours": 1.0, "ours-http": 0.5, "hf-prefix": 4.0, "vllm": 2.0}

    found = against_best([phase(system, wall) for system, wall in walls.items()])

    assert [(one.own, one.other, one.ratio.median) for one in found] == [
        ("ours", "vllm", 2.0),
        ("ours-http", "vllm", 4.0),
    ]


def test_open_loop_is_not_compared() -> None:
    records: list[PhaseRecord] = [phase(system, 1.0, workload="W7", name="30%") for system in ("ours", "vllm")]

    assert compare(records, "ours", "vllm") == []


@pytest.mark.parametrize(("system", "own"), [("ours", True), ("ours-int8", True), ("oursome", False), ("vllm", False)])
def test_own_systems_are_told_by_their_names(system: str, own: bool) -> None:
    assert is_own(system) is own
