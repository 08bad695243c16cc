from __future__ import annotations

import pytest

from benchmarks.comparison import against_best, compare
from benchmarks.comparison_report import best_section, roof_rows_per_s, roof_share, rounds_section
from benchmarks.flops import ModelCost
from benchmarks.series import phase_series
from benchmarks.token_counts import PerfectCache
from benchmarks.vocabulary import load_vocabulary
from benchmarks.workloads import build_workload
from tests.helpers.phase_records import phase_record as phase
from tests.helpers.report_tables import rows_of
from tests.helpers.tiny import tiny_config

COST = ModelCost(config=tiny_config())
FLOP = COST.linear_flop(800) + COST.attention_flop(90_000)


def test_share_of_the_roof_is_taken_at_the_calibration_of_the_same_repeat() -> None:
    # in two of three repeats the formula's work would take a tenth of the time, though one had half the machine
    rate = FLOP / 0.2 / 1e9
    records = [
        phase("ours", 2.0, calibration=(rate, rate)),
        phase("ours", 4.0, calibration=(rate, 0.0), repeat=1),
        phase("ours", 2.0, calibration=(0.0, rate), repeat=2),
    ]

    (series,) = phase_series(records)

    assert roof_share(series, COST) == pytest.approx(0.1)
    assert roof_rows_per_s(series, COST, rate) == pytest.approx(10 / 0.2)


def test_best_section_shows_ratio_aim_calibrations_and_distance_to_the_roof() -> None:
    rate = FLOP / 0.2 / 1e9
    records = [
        *(phase("ours", 2.0, repeat=repeat, calibration=(rate, rate)) for repeat in (0, 1)),
        *(phase("vllm", 2.5, repeat=repeat, calibration=(7.0, 9.0), idle=False) for repeat in (0, 1)),
    ]

    (row,) = rows_of(best_section(against_best(records), phase_series(records), COST), "## Against")

    assert row[:6] == ["W1 cold", "ours", "vllm", "1.25 (1.25–1.25)", "≥ 1.1", "2 (0)"]
    assert row[6].endswith("/ 8.00")
    assert row[7:] == ["5.00", "50.0", "10%"]


def test_rounds_are_listed_one_by_one_with_their_calibrations() -> None:
    records = [
        phase("ours", 2.0, calibration=(800.0, 800.0)),
        phase("vllm", 3.0, calibration=(900.0, 900.0)),
        phase("ours", 2.0, repeat=1),
        phase("vllm", 1.0, repeat=1, idle=False),
    ]

    first, second = rows_of(rounds_section(compare(records, "ours", "vllm")), "## Rounds")

    assert first == ["W1 cold", "ours", "vllm", "1", "1.50", "800", "900"]
    assert second == ["W1 cold", "ours", "vllm", "2", "0.500*", "900", "900"]


def test_nothing_to_compare_has_no_section() -> None:
    assert best_section([], [], COST) == rounds_section([]) == ""


@pytest.mark.parametrize(
    ("name", "linear_gflop", "attention_gflop"),
    [
        ("W1", [2582.8], [184.9]),
        ("W2", [2364.4, 652.5], [537.8, 227.7]),
        ("W3", [1188.6, 326.2], [1002.2, 432.4]),
    ],
)
def test_roofs_rest_on_the_work_that_was_counted_for_the_peers(
    name: str, linear_gflop: list[float], attention_gflop: list[float]
) -> None:
    """The figures were worked out apart, for other words; a few rows may share their first token by chance."""
    shape = tiny_config(
        hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64
    )
    cost, cache = ModelCost(config=shape), PerfectCache()
    works = [cache.run(phase) for phase in build_workload(name, "full", load_vocabulary()).phases]

    assert [cost.linear_flop(work.unique) / 1e9 for work in works] == pytest.approx(linear_gflop, rel=0.005)
    assert [cost.attention_flop(work.attended) / 1e9 for work in works] == pytest.approx(attention_gflop, rel=0.005)
