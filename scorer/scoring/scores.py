"""From what the engine read to scores: pure arithmetic, in double precision.

Numbers are rounded once, here, to seven significant digits: more than any model in bfloat16 can
promise, and just enough for shares to add up to 1 within a millionth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from engine import LabelOutcome, LikelihoodOutcome, Outcome, Unscored
from scorer.calibration.calibration import Platt
from scorer.scoring.readouts import LabelPlan, LikelihoodPlan, ReadoutPlan

_FORMAT = "%.7g"


class Late(Exception):
    """The engine did not come to a row before the deadline; there is no score."""


class NonFinite(Exception):
    """The engine read NaN or infinity; there is no score."""


class ItemScore(Struct, frozen=True, kw_only=True, gc=False):
    """The score of one pair; what its readout does not give is None.

    There is one for each of the thousands of pairs of a batch, hence a struct: it is made much
    faster than a frozen dataclass, and the collector need not look at it.

    Args:
        relevance: ``score`` on a scale of 0 to 1.
        choice, probabilities: Of the options of a query.
        spread: Greatest less smallest score over the orders that were averaged.
        agreement: Share of the orders whose most probable answer is that of the mean.
    """

    score: float
    relevance: float
    label: str | None = None
    labels: dict[str, float] | None = None
    label_mass: float | None = None
    choice: int | None = None
    probabilities: list[float] | None = None
    log_prob_sum: float | None = None
    target_tokens: int | None = None
    spread: float | None = None
    agreement: float | None = None
    num_chunks: int | None = None
    best_chunk: int | None = None


class LabelReading(Struct, frozen=True, gc=False):
    """What was read of the labels of one prompt.

    Args:
        log_weights: Logits, or log-probabilities where labels have several tokens.
        denominator: Logarithm of the weight of the whole vocabulary; None: not read.
    """

    log_weights: Sequence[float]
    denominator: float | None


class LikelihoodReading(Struct, frozen=True, gc=False):
    """Log-probability of a target and its length in tokens."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        return self.total / self.tokens


Reading: TypeAlias = LabelReading | LikelihoodReading


class Judgement(Struct, frozen=True, gc=False):
    """The score of one reading, not rounded.

    Args:
        shares: Probability of each label; empty for a likelihood.
    """

    score: float
    shares: Sequence[float] = ()
    label_mass: float | None = None
    log_prob_sum: float | None = None
    target_tokens: int | None = None


def score_of(outcomes: Sequence[Outcome], plan: ReadoutPlan) -> ItemScore:
    """The score of a pair from the outcomes of its rows.

    Raises:
        Late, NonFinite: see :func:`read`.
    """
    return item_score(judge(read(outcomes, plan), plan), plan)


def read(outcomes: Sequence[Outcome], plan: ReadoutPlan) -> Reading:
    """What the rows of one prompt say.

    Raises:
        Late: some row was not started in time.
        NonFinite: a number that was read is not finite.
    """
    first = outcomes[0]
    if isinstance(first, LabelOutcome):  # one row reads all labels
        _check_finite(first.logits, first.log_sum_exp or 0.0)
        return LabelReading(first.logits, first.log_sum_exp)
    branches = [outcome.log_probs for outcome in outcomes if isinstance(outcome, LikelihoodOutcome)]
    if len(branches) < len(outcomes):
        reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, Unscored)}
        raise Late if "deadline" in reasons else NonFinite
    for log_probs in branches:
        _check_finite(log_probs)
    totals = [math.fsum(log_probs) for log_probs in branches]
    if isinstance(plan, LabelPlan):
        return LabelReading(totals, 0.0)  # log-probabilities: the whole is 1
    return LikelihoodReading(totals[0], len(branches[0]))


def judge(
    reading: Reading, plan: ReadoutPlan, *, positive: int | None = None, content_free: Reading | None = None
) -> Judgement:
    """The score of one reading.

    Args:
        positive: The label that speaks of the pair; None: the one of the plan.
        content_free: What the same prompt gives over a document that says nothing; it is taken off
            (contextual calibration, Zhao et al. 2021).
    """
    if isinstance(reading, LikelihoodReading):
        assert content_free is None or isinstance(content_free, LikelihoodReading), "both come from one readout"
        mean = reading.mean - (content_free.mean if content_free else 0.0)
        return Judgement(mean, log_prob_sum=reading.total, target_tokens=reading.tokens)
    assert isinstance(plan, LabelPlan), "labels come from a label readout"
    assert content_free is None or isinstance(content_free, LabelReading), "both come from one readout"
    return _judge_labels(reading, plan, plan.positive if positive is None else positive, content_free)


def item_score(judgement: Judgement, plan: ReadoutPlan, *, content_free: bool = False) -> ItemScore:
    """A judgement in the form that is answered, rounded.

    Args:
        content_free: Something was taken off the score.
    """
    score = judgement.score
    relevance = relevance_of(score, plan, content_free=content_free)
    if isinstance(plan, LikelihoodPlan):
        assert judgement.log_prob_sum is not None, "a likelihood has a sum"
        return ItemScore(
            score=rounded(score),
            relevance=rounded(relevance),
            log_prob_sum=rounded(judgement.log_prob_sum),
            target_tokens=judgement.target_tokens,
        )
    mass = None if judgement.label_mass is None else rounded(judgement.label_mass)
    if plan.answers == "documents":
        return ItemScore(score=rounded(score), relevance=rounded(relevance), label_mass=mass)
    shares = [float(_FORMAT % share) for share in judgement.shares]  # never negative
    best = best_answer(shares)
    if plan.answers == "options":
        return ItemScore(score=shares[best], relevance=shares[best], choice=best, probabilities=shares, label_mass=mass)
    several = len(shares) > 1 or plan.normalise == "vocabulary"
    # most often it is that share, and rounding is what takes longest here
    shown = shares[plan.positive] if score == judgement.shares[plan.positive] else rounded(score)
    return ItemScore(
        score=shown,
        relevance=shown if relevance == score else rounded(relevance),
        label=plan.labels[best] if several else None,
        labels=_by_label(plan.labels, shares) if several else None,
        label_mass=mass,
    )


def relevance_of(score: float, plan: ReadoutPlan, *, content_free: bool = False) -> float:
    """A score on a scale of 0 to 1."""
    if plan.platt is not None:
        return _platt(score, plan.platt)
    if isinstance(plan, LikelihoodPlan):
        # a difference of log-probabilities has no upper end
        return _sigmoid(score) if content_free else math.exp(min(0.0, score))
    scoring = plan.scoring
    match scoring.kind:
        case "probability":
            return score
        case "expected":
            low, high = min(scoring.values), max(scoring.values)
            return min(1.0, max(0.0, (score - low) / (high - low)))
        case "logit" | "difference":
            return _sigmoid(scoring.scale * score + scoring.offset)


def best_answer(shares: Sequence[float]) -> int:
    """Index of the greatest share; of equals, the first."""
    return shares.index(max(shares))


def _judge_labels(
    reading: LabelReading, plan: LabelPlan, positive: int, content_free: LabelReading | None
) -> Judgement:
    log_weights, denominator = reading.log_weights, reading.denominator
    mass = None
    if plan.label_mass:
        assert denominator is not None, "the row was planned with a denominator"
        mass = min(1.0, math.fsum(_share(weight, denominator) for weight in log_weights))
    if content_free is not None:
        log_weights = [own - empty for own, empty in zip(log_weights, content_free.log_weights, strict=True)]
    if plan.normalise == "vocabulary":
        assert denominator is not None, "the row was planned with a denominator"
        shares = [_share(weight, denominator) for weight in log_weights]
    else:
        shares = _softmax(log_weights, plan.temperature)
    return Judgement(_label_score(log_weights, shares, plan, positive), shares, mass)


def _label_score(log_weights: Sequence[float], shares: Sequence[float], plan: LabelPlan, positive: int) -> float:
    match plan.scoring.kind:
        case "probability":
            return shares[positive]
        case "logit":
            return log_weights[positive]
        case "difference":
            return log_weights[positive] - log_weights[1 - positive]
        case "expected":
            return math.fsum(share * value for share, value in zip(shares, plan.scoring.values, strict=True))


def _by_label(labels: Sequence[str], shares: Sequence[float]) -> dict[str, float]:
    if len(labels) == 2:  # most often, hence apart
        return {labels[0]: shares[0], labels[1]: shares[1]}
    return dict(zip(labels, shares, strict=True))


def _platt(score: float, platt: Platt) -> float:
    return _sigmoid(platt.slope * score + platt.intercept)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else (power := math.exp(value)) / (1 + power)


def _share(log_weight: float, log_whole: float) -> float:
    """A probability; float32 may put a part above its whole by a rounding error."""
    return math.exp(min(0.0, log_weight - log_whole))


def _softmax(values: Sequence[float], temperature: float) -> list[float]:
    if len(values) == 2:  # most often, hence apart; to the last bit what the general case gives
        first, second = values
        weight = math.exp(-abs(first - second) / temperature)
        greater, less = 1.0 / (1.0 + weight), weight / (1.0 + weight)
        return [greater, less] if first >= second else [less, greater]
    top = max(values)
    weights = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _check_finite(numbers: Sequence[float], other: float = 0.0) -> None:
    """Looks at the sum: no sum of finite float32 numbers overflows a double, and NaN and infinity stay in it."""
    if not math.isfinite(sum(numbers, other)):
        raise NonFinite


def rounded(value: float) -> float:
    """To the digits that are answered."""
    return float(_FORMAT % value) + 0.0  # + 0.0: never a negative zero
