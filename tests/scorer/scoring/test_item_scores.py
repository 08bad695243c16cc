"""Judged by arithmetic that is written out, over readings that are made up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scorer.calibration.calibration import Platt
from scorer.scoring.item_plan import ItemPlan, Part
from scorer.scoring.item_scores import score_item
from scorer.scoring.readouts import LabelPlan, LikelihoodPlan
from scorer.scoring.scores import ItemScore, LabelReading, LikelihoodReading, Reading
from scorer.templates.types import Scoring

IDS = tuple(np.array([token], dtype=np.int32) for token in range(3))


def labels(count: int = 2, **changes: object) -> LabelPlan:
    names = ("a", "b", "c")[:count]
    return LabelPlan(**({"labels": names, "ids": IDS[:count], "positive": 0} | changes))  # type: ignore[arg-type]


def shares(*weights: float) -> LabelReading:
    """A reading whose softmax is ``weights``."""
    return LabelReading([math.log(weight) for weight in weights], None)


def score(item: ItemPlan, plan: LabelPlan | LikelihoodPlan, *readings: Reading) -> ItemScore:
    return score_item(item, dict(enumerate(readings)), [plan] * len(readings))


ORDERS = ItemPlan(chunks=((Part(0), Part(1)),), num_orders=2)
CHUNKS = ((Part(0),), (Part(1),), (Part(2),))


def test_orders_are_averaged_with_their_spread_and_their_agreement() -> None:
    result = score(ORDERS, labels(), shares(0.8, 0.2), shares(0.4, 0.6))

    assert result.score == pytest.approx(0.6)
    assert result.labels == pytest.approx({"a": 0.6, "b": 0.4})
    assert result.label == "a"
    assert result.spread == pytest.approx(0.4)
    assert result.agreement == 0.5


def test_orders_that_say_the_same_have_no_spread_and_agree() -> None:
    result = score(ORDERS, labels(), shares(0.8, 0.2), shares(0.8, 0.2))

    assert (result.spread, result.agreement) == (0.0, 1.0)
    assert result.num_chunks is None


def test_one_order_has_neither_spread_nor_agreement() -> None:
    result = score(ItemPlan(chunks=((Part(0),),)), labels(), shares(0.8, 0.2))

    assert (result.spread, result.agreement) == (None, None)


def test_options_are_answered_by_index_and_scored_by_the_chosen_one() -> None:
    plan = labels(3, answers="options")
    result = score(ORDERS, plan, shares(0.2, 0.5, 0.3), shares(0.4, 0.5, 0.1))

    assert result.choice == 1
    assert result.probabilities == pytest.approx([0.3, 0.5, 0.2])
    assert result.score == result.relevance == pytest.approx(0.5)
    assert result.spread == pytest.approx(0.0)
    assert result.labels is None


def test_the_best_part_of_a_document_is_its_score_or_the_mean_of_all() -> None:
    readings = shares(0.1, 0.9), shares(0.7, 0.3), shares(0.4, 0.6)
    best = score(ItemPlan(chunks=CHUNKS, combine="max"), labels(), *readings)
    mean = score(ItemPlan(chunks=CHUNKS, combine="mean"), labels(), *readings)

    assert (best.score, mean.score) == pytest.approx((0.7, 0.4))
    assert best.labels == pytest.approx({"a": 0.7, "b": 0.3})
    assert {(each.num_chunks, each.best_chunk) for each in (best, mean)} == {(3, 1)}


def test_parts_in_several_orders_are_averaged_before_they_compete() -> None:
    item = ItemPlan(chunks=((Part(0), Part(1)), (Part(2), Part(3))), num_orders=2)
    readings = shares(0.9, 0.1), shares(0.1, 0.9), shares(0.6, 0.4), shares(0.6, 0.4)
    result = score(item, labels(), *readings)

    assert result.score == pytest.approx(0.6)
    assert (result.best_chunk, result.spread) == (1, 0.0)


def test_what_no_document_says_is_taken_off_a_likelihood() -> None:
    item = ItemPlan(chunks=((Part(0),),), content_free=(Part(1),))
    result = score(item, LikelihoodPlan(), LikelihoodReading(-6.0, 3), LikelihoodReading(-9.0, 3))

    assert result.score == pytest.approx(1.0)
    assert result.relevance == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-6)
    assert result.log_prob_sum == -6.0


def test_what_no_document_says_is_divided_out_of_the_labels() -> None:
    item = ItemPlan(chunks=((Part(0),),), content_free=(Part(1),))
    result = score(item, labels(), shares(0.6, 0.4), shares(0.8, 0.2))

    assert result.score == pytest.approx((0.6 / 0.8) / (0.6 / 0.8 + 0.4 / 0.2))


def test_each_order_is_held_against_its_own_empty_prompt() -> None:
    item = ItemPlan(chunks=((Part(0), Part(1)),), num_orders=2, content_free=(Part(2), Part(3)))
    readings = shares(0.8, 0.2), shares(0.2, 0.8), shares(0.8, 0.2), shares(0.2, 0.8)

    assert score(item, labels(), *readings).score == pytest.approx(0.5)


def test_a_document_is_worth_the_mean_of_its_comparisons() -> None:
    # won the first comparison in both orders, lost the second in one of them
    plan = labels(answers="documents")
    item = ItemPlan(chunks=((Part(0, 0), Part(1, 0), Part(2, 1), Part(3, 1)),), num_orders=2)
    readings = shares(0.9, 0.1), shares(0.7, 0.3), shares(0.4, 0.6), shares(0.8, 0.2)
    result = score(item, plan, *readings)

    assert result.score == result.relevance == pytest.approx((0.9 + 0.7 + 0.6 + 0.2) / 4)
    assert result.spread == pytest.approx((0.9 + 0.6) / 2 - (0.7 + 0.2) / 2)
    assert (result.labels, result.label, result.agreement) == (None, None, None)


@pytest.mark.parametrize(
    ("scoring", "want", "relevance"),
    [
        (Scoring(), 0.75, 0.75),
        (Scoring(kind="logit", scale=0.2), math.log(0.75), 1 / (1 + math.exp(-0.2 * math.log(0.75)))),
        (Scoring(kind="difference", offset=-1.0), math.log(3), 1 / (1 + math.exp(1 - math.log(3)))),
        (Scoring(kind="expected", values=(4.0, 2.0)), 3.5, 0.75),
    ],
)
def test_scores_are_what_the_template_makes_of_the_labels(scoring: Scoring, want: float, relevance: float) -> None:
    result = score(ItemPlan(chunks=((Part(0),),)), labels(scoring=scoring), shares(0.75, 0.25))

    assert result.score == pytest.approx(want, rel=1e-6)
    assert result.relevance == pytest.approx(relevance, rel=1e-6)


def test_a_single_label_has_a_logit_and_no_probability() -> None:
    plan = labels(1, scoring=Scoring(kind="logit"))
    result = score(ItemPlan(chunks=((Part(0),),)), plan, LabelReading([-2.5], None))

    assert result.score == -2.5
    assert (result.label, result.labels) == (None, None)


def test_a_calibration_maps_the_score_to_a_probability() -> None:
    platt = Platt(slope=2.0, intercept=3.0)
    likelihood = score(ItemPlan(chunks=((Part(0),),)), LikelihoodPlan(platt), LikelihoodReading(-4.0, 2))
    label = score(ItemPlan(chunks=((Part(0),),)), labels(platt=platt), shares(0.75, 0.25))

    assert likelihood.score == -2.0
    assert likelihood.relevance == pytest.approx(1 / (1 + math.exp(1)), rel=1e-6)
    assert label.relevance == pytest.approx(1 / (1 + math.exp(-4.5)), rel=1e-6)
