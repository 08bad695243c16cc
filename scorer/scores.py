"""From what the engine read to scores: pure arithmetic, in double precision.

Numbers are rounded once, here, to seven significant digits: more than any model in bfloat16 can
promise, and just enough for shares to add up to 1 within a millionth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from engine import LabelOutcome, LikelihoodOutcome, Outcome
from scorer.readouts import LabelPlan, ReadoutPlan

_DIGITS = 7


class NonFinite(Exception):
    """The engine read NaN or infinity; there is no score."""


class ItemScore(Struct, frozen=True, kw_only=True, gc=False):
    """The score of one pair; what its readout does not give is None.

    There is one for each of the thousands of pairs of a batch, hence a struct: it is made in a
    tenth of the time of a frozen dataclass, and the collector need not look at it.

    Args:
        relevance: ``score`` on a scale of 0 to 1.
    """

    score: float
    relevance: float
    label: str | None = None
    labels: dict[str, float] | None = None
    label_mass: float | None = None
    log_prob_sum: float | None = None
    target_tokens: int | None = None


def score_of(outcomes: Sequence[Outcome], plan: ReadoutPlan) -> ItemScore:
    """The score of a pair from the outcomes of its rows, none of them unscored.

    Raises:
        NonFinite: a number that was read is not finite.
    """
    if isinstance(plan, LabelPlan):
        log_weights, denominator = _label_weights(outcomes)
        return _label_score(log_weights, denominator, plan)
    (outcome,) = outcomes
    assert isinstance(outcome, LikelihoodOutcome), "a likelihood row gives a likelihood"
    return _likelihood_score(outcome)


def _label_weights(outcomes: Sequence[Outcome]) -> tuple[Sequence[float], float | None]:
    """Logarithm of the weight of each label, and of that of the whole vocabulary if it was read."""
    first = outcomes[0]
    if isinstance(first, LabelOutcome):  # one row reads all labels
        return first.logits, first.log_sum_exp
    branches = [outcome.log_probs for outcome in outcomes if isinstance(outcome, LikelihoodOutcome)]
    for log_probs in branches:
        _check_finite(log_probs)
    return [math.fsum(log_probs) for log_probs in branches], 0.0  # log-probabilities: the whole is 1


def _label_score(log_weights: Sequence[float], denominator: float | None, plan: LabelPlan) -> ItemScore:
    _check_finite(log_weights if denominator is None else [*log_weights, denominator])
    if plan.normalise == "vocabulary":
        assert denominator is not None, "the row was planned with a denominator"
        shares = [_share(weight, denominator) for weight in log_weights]
    else:
        shares = _softmax([weight / plan.temperature for weight in log_weights])
    mass = None
    if plan.label_mass:
        assert denominator is not None, "the row was planned with a denominator"
        mass = min(1.0, math.fsum(_share(weight, denominator) for weight in log_weights))
    rounded = [_rounded(share) for share in shares]
    score = rounded[plan.positive]
    return ItemScore(
        score=score,
        relevance=score,
        label=plan.labels[max(range(len(rounded)), key=rounded.__getitem__)],
        labels=dict(zip(plan.labels, rounded, strict=True)),
        label_mass=None if mass is None else _rounded(mass),
    )


def _likelihood_score(outcome: LikelihoodOutcome) -> ItemScore:
    _check_finite(outcome.log_probs)
    total = math.fsum(outcome.log_probs)
    mean = total / len(outcome.log_probs)
    return ItemScore(
        score=_rounded(mean),
        relevance=_rounded(_share(mean, 0.0)),
        log_prob_sum=_rounded(total),
        target_tokens=len(outcome.log_probs),
    )


def _share(log_weight: float, log_whole: float) -> float:
    """A probability; float32 may put a part above its whole by a rounding error."""
    return math.exp(min(0.0, log_weight - log_whole))


def _softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _check_finite(numbers: Sequence[float]) -> None:
    """Looks at the sum: no sum of finite float32 numbers overflows a double, and NaN and infinity stay in it."""
    if not math.isfinite(sum(numbers)):
        raise NonFinite


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") + 0.0  # + 0.0: never a negative zero
