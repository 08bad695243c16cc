from __future__ import annotations

import math

import numpy as np
import pytest

from engine import LabelOutcome, LikelihoodOutcome, Unscored
from scorer.scoring.readouts import LabelPlan, LikelihoodPlan
from scorer.scoring.scores import ItemScore, LabelReading, Late, NonFinite, judge, score_of

ONE = tuple(np.array([token], dtype=np.int32) for token in (3, 4))
SEVERAL = (np.array([3, 4], dtype=np.int32), np.array([3, 5], dtype=np.int32))


def labels(**changes: object) -> LabelPlan:
    return LabelPlan(**({"labels": ("Yes", "No"), "ids": ONE, "positive": 0} | changes))  # type: ignore[arg-type]


def score(plan: LabelPlan, *logits: float, log_sum_exp: float | None = None) -> ItemScore:
    return score_of([LabelOutcome(logits=logits, log_sum_exp=log_sum_exp)], plan)


def test_two_labels_share_by_the_difference_of_their_logits() -> None:
    result = score(labels(), 3.0, 1.0)

    assert result.score == pytest.approx(1 / (1 + math.exp(-2)), rel=1e-5)
    assert result.labels is not None
    assert dict(result.labels) == {"Yes": result.score, "No": pytest.approx(1 / (1 + math.exp(2)), rel=1e-5)}
    assert result.label == "Yes"
    assert result.relevance == result.score
    assert result.label_mass is None


@pytest.mark.parametrize("temperature", [1.0, 0.3, 7.0])
def test_two_labels_share_to_the_last_bit_as_if_there_were_more(temperature: float) -> None:
    rng = np.random.default_rng(2)
    plan = labels(temperature=temperature)
    for pair in rng.normal(scale=3, size=(200, 2)).tolist():
        weights = [math.exp((logit - max(pair)) / temperature) for logit in pair]
        want = [weight / math.fsum(weights) for weight in weights]

        assert judge(LabelReading(pair, None), plan).shares == want


def test_temperature_divides_the_difference() -> None:
    assert score(labels(temperature=2.0), 3.0, 1.0).score == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-5)


def test_shares_of_the_vocabulary_are_measured_against_its_denominator() -> None:
    result = score(labels(normalise="vocabulary", label_mass=True), 1.0, 0.0, log_sum_exp=2.0)

    assert result.labels is not None
    assert dict(result.labels) == {
        "Yes": pytest.approx(math.exp(-1), rel=1e-5),
        "No": pytest.approx(math.exp(-2), rel=1e-5),
    }
    assert result.label_mass == pytest.approx(math.exp(-1) + math.exp(-2), rel=1e-5)


def test_labels_of_several_tokens_share_by_the_sums_of_their_log_probabilities() -> None:
    outcomes = [LikelihoodOutcome(log_probs=(-0.5, -1.0)), LikelihoodOutcome(log_probs=(-0.5, -2.0))]
    result = score_of(outcomes, labels(ids=SEVERAL, label_mass=True))

    assert result.score == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-5)
    assert result.label_mass == pytest.approx(math.exp(-1.5) + math.exp(-2.5), rel=1e-5)


def test_the_first_of_equal_labels_is_the_answer_and_the_positive_one_the_score() -> None:
    result = score(labels(positive=1), 1.0, 1.0)

    assert (result.label, result.score) == ("Yes", 0.5)


def test_a_likelihood_is_the_mean_of_the_log_probabilities() -> None:
    result = score_of([LikelihoodOutcome(log_probs=(-1.0, -2.0, -6.0))], LikelihoodPlan())

    assert (result.score, result.log_prob_sum, result.target_tokens) == (-3.0, -9.0, 3)
    assert result.relevance == pytest.approx(math.exp(-3), rel=1e-5)


def test_numbers_have_seven_significant_digits_and_no_negative_zero() -> None:
    tiny = score_of([LikelihoodOutcome(log_probs=(-1 / 3000,))], LikelihoodPlan())
    zero = score_of([LikelihoodOutcome(log_probs=(-0.0,))], LikelihoodPlan())

    assert tiny.score == -0.0003333333
    assert math.copysign(1, zero.score) == 1


@pytest.mark.parametrize("num_labels", [2, 3, 26, 64])
def test_b011_shares_add_up_to_one_within_a_millionth(num_labels: int) -> None:
    rng = np.random.default_rng(num_labels)
    ids = tuple(np.array([token], dtype=np.int32) for token in range(num_labels))
    plan = LabelPlan(labels=tuple(map(str, range(num_labels))), ids=ids, positive=0)
    for _ in range(50):
        result = score(plan, *rng.normal(scale=5, size=num_labels).tolist())

        assert result.labels is not None
        assert sum(result.labels.values()) == pytest.approx(1.0, abs=1e-6)


def test_logits_of_any_size_are_taken() -> None:
    assert score(labels(), 3e38, -3e38).score == 1.0
    assert score(labels(temperature=0.01), -1e30, 1e30).score == 0.0


def test_probabilities_never_exceed_one_by_a_rounding_error() -> None:
    result = score(labels(normalise="vocabulary", label_mass=True), 2.0000002, -9.0, log_sum_exp=2.0)

    assert result.score == 1.0
    assert result.label_mass == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_b010_what_is_not_finite_gives_no_score(bad: float) -> None:
    with pytest.raises(NonFinite):
        score(labels(), bad, 1.0)
    with pytest.raises(NonFinite):
        score(labels(label_mass=True), 1.0, 1.0, log_sum_exp=bad)
    with pytest.raises(NonFinite):
        score_of([LikelihoodOutcome(log_probs=(-1.0, bad))], LikelihoodPlan())
    with pytest.raises(NonFinite):
        score_of([LikelihoodOutcome(log_probs=(math.inf, -math.inf))] * 2, labels(ids=SEVERAL))


def test_a_pair_that_lacks_a_row_has_no_score_and_is_late_if_any_row_is() -> None:
    known, late, bad = LikelihoodOutcome(log_probs=(-1.0,)), Unscored(reason="deadline"), Unscored(reason="non_finite")
    with pytest.raises(Late):
        score_of([known, late, bad], labels(ids=SEVERAL))
    with pytest.raises(NonFinite):
        score_of([bad, known], labels(ids=SEVERAL))
    with pytest.raises(Late):
        score_of([late], LikelihoodPlan())
