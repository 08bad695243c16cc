from __future__ import annotations

import math

import pytest

from scorer.evaluation.label_eval import Answer, expected_calibration_error, judge_answers, wilson_interval


def test_measures_of_a_few_answers_by_hand() -> None:
    answers = [
        Answer(probabilities=[0.7, 0.3], label=0, agreement=1.0),
        Answer(probabilities=[0.4, 0.6], label=0, agreement=0.5),
        Answer(probabilities=[0.1, 0.2, 0.7], label=2, agreement=0.5),
        Answer(probabilities=[0.5, 0.5], label=0, agreement=1.0),
    ]
    row = judge_answers("all", answers)

    assert (row.name, row.num_questions, row.accuracy, row.flips) == ("all", 4, 0.75, 0.5)
    assert row.log_loss == pytest.approx(-(math.log(0.7) + math.log(0.4) + math.log(0.7) + math.log(0.5)) / 4)
    # bins: two right answers at 0.7; a wrong one at 0.6; a right one at 0.5
    assert row.ece == pytest.approx((abs(1.4 - 2) + abs(0.6 - 0) + abs(0.5 - 1)) / 4)


def test_answers_of_one_order_have_no_flips() -> None:
    assert judge_answers("x", [Answer(probabilities=[1.0, 0.0], label=0)]).flips is None


def test_a_share_of_zero_costs_much_and_not_everything() -> None:
    assert 20 < judge_answers("x", [Answer(probabilities=[1.0, 0.0], label=1)]).log_loss < 30


def test_belief_that_is_borne_out_has_no_calibration_error() -> None:
    assert expected_calibration_error([(0.75, True)] * 3 + [(0.75, False)]) == 0.0
    assert expected_calibration_error([(1.0, True)]) == 0.0
    assert expected_calibration_error([(1.0, False), (0.95, False)]) == pytest.approx(0.975)


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(0, 10, 0.0, 0.27753), (5, 10, 0.23659, 0.76341), (10, 10, 0.72247, 1.0), (50, 100, 0.40383, 0.59617)],
)
def test_intervals(successes: int, total: int, low: float, high: float) -> None:
    assert wilson_interval(successes, total) == pytest.approx((low, high), abs=1e-4)
