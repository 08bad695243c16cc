"""Judged by searching parameters on a grid, and by data drawn from a known curve."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scorer.calibration.calibration import CalibrationError
from scorer.calibration.fit import (
    PLATT,
    TEMPERATURE,
    ScoredPair,
    fit_platt,
    fit_temperature,
    platt_loss,
    temperature_loss,
)
from scorer.evaluation.label_eval import Answer


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def drawn_pairs(count: int, slope: float, intercept: float, *, seed: int = 0, scale: float = 1.0) -> list[ScoredPair]:
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=scale, size=count)
    return [
        ScoredPair(
            float(score), math.exp(min(0.0, float(score))), bool(rng.random() < sigmoid(slope * score + intercept))
        )
        for score in scores
    ]


def smoothed_loss(pairs: list[ScoredPair], slope: float, intercept: float) -> float:
    positives = sum(pair.relevant for pair in pairs)
    high, low = (positives + 1) / (positives + 2), 1 / (len(pairs) - positives + 2)
    total = 0.0
    for pair in pairs:
        share = sigmoid(slope * pair.score + intercept)
        target = high if pair.relevant else low
        total -= target * math.log(share) + (1 - target) * math.log(1 - share)
    return total


def drawn_answers(count: int, temperature: float, *, num_options: int = 4, seed: int = 0) -> list[Answer]:
    """Answers that are right as often as their probabilities at ``temperature`` say."""
    rng = np.random.default_rng(seed)
    answers = []
    for _ in range(count):
        weights = rng.normal(scale=3, size=num_options)
        shown = np.exp(weights) / np.exp(weights).sum()
        true = np.exp(weights / temperature) / np.exp(weights / temperature).sum()
        answers.append(Answer(probabilities=shown.tolist(), label=int(rng.choice(num_options, p=true))))
    return answers


@pytest.mark.parametrize(("slope", "intercept", "scale"), [(2.0, 1.0, 1.0), (0.5, -2.0, 3.0), (40.0, 3.0, 0.05)])
def test_a_sigmoid_is_found_again(slope: float, intercept: float, scale: float) -> None:
    platt = fit_platt(drawn_pairs(20_000, slope, intercept, scale=scale))

    assert platt.slope == pytest.approx(slope, rel=0.1)
    assert platt.intercept == pytest.approx(intercept, abs=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_no_neighbour_of_the_sigmoid_is_better(seed: int) -> None:
    pairs = drawn_pairs(60, 1.5, -0.5, seed=seed)
    platt = fit_platt(pairs)
    best = smoothed_loss(pairs, platt.slope, platt.intercept)

    for slope in (-0.01, 0, 0.01):
        for intercept in (-0.01, 0, 0.01):
            assert smoothed_loss(pairs, platt.slope + slope, platt.intercept + intercept) >= best - 1e-9


def test_pairs_that_are_parted_by_their_scores_have_a_finite_sigmoid() -> None:
    pairs = [ScoredPair(float(score), 0.5, score > 0) for score in (-3, -2, -1, 1, 2, 3)]
    platt = fit_platt(pairs)

    assert 0 < platt.slope < 100
    assert platt.intercept == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([ScoredPair(1.0, 0.5, True)] * 3, "3 pairs are relevant and 0 are not"),
        ([ScoredPair(1.0, 0.5, True), ScoredPair(1.0, 0.5, False)], "the same score"),
        ([ScoredPair(float(score), 0.5, score < 0) for score in (-2, -1, 1, 2)], "do not score higher"),
    ],
)
def test_pairs_that_tell_nothing_are_refused(pairs: list[ScoredPair], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        fit_platt(pairs)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_a_temperature_is_found_again(temperature: float) -> None:
    assert fit_temperature(drawn_answers(8000, temperature)) == pytest.approx(temperature, rel=0.08)


def test_no_other_temperature_is_better() -> None:
    answers = drawn_answers(200, 1.7)
    fitted = fit_temperature(answers)
    losses = {step: temperature_loss(answers, fitted * step)[0] for step in (0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 2.0)}

    assert min(losses, key=losses.__getitem__) == 1.0


def test_answers_without_a_best_temperature_are_refused() -> None:
    wrong = [Answer(probabilities=[0.9, 0.1], label=1)] * 3
    right = [Answer(probabilities=[0.9, 0.1], label=0)] * 3

    with pytest.raises(CalibrationError, match="no better than chance"):
        fit_temperature(wrong)
    with pytest.raises(CalibrationError, match="right beyond doubt"):
        fit_temperature(right)


def test_a_fit_is_judged_on_examples_that_had_no_part_in_it() -> None:
    pairs = drawn_pairs(400, 3.0, 1.0)
    fit = PLATT.cross_fit(pairs)
    halves = pairs[::2], pairs[1::2]
    after = [platt_loss(judged, fit_platt(fitted)) for judged, fitted in (halves, halves[::-1])]

    assert fit.num_examples == 400
    assert fit.log_loss_after == pytest.approx((after[0][0] + after[1][0]) / 2)
    assert fit.ece_after == pytest.approx((after[0][1] + after[1][1]) / 2)
    assert fit.log_loss_after < fit.log_loss_before
    assert fit.ece_after < fit.ece_before


def test_a_temperature_lowers_the_calibration_error_of_overbold_answers() -> None:
    fit = TEMPERATURE.cross_fit(drawn_answers(1000, 3.0))

    assert fit.ece_after < fit.ece_before / 2
    assert fit.log_loss_after < fit.log_loss_before


def test_one_example_cannot_be_judged() -> None:
    with pytest.raises(CalibrationError, match="not enough"):
        TEMPERATURE.cross_fit([Answer(probabilities=[0.5, 0.5], label=0)])
