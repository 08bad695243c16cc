"""Fits calibrations: two parameters by Newton's method, one by halving an interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from scorer.calibration.calibration import CalibrationError, Fit, Platt
from scorer.evaluation.label_eval import Answer, expected_calibration_error, log_loss

Example = TypeVar("Example")
Fitted = TypeVar("Fitted")
Numbers = npt.NDArray[np.float64]

_MOST_STEPS: Final = 100
_LOWEST: Final = 0.01  # the temperatures that a request may ask for
_HIGHEST: Final = 100.0
_SMALLEST: Final = 1e-12


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """A score, the relevance that it stands for without a calibration, and what is true."""

    score: float
    relevance: float
    relevant: bool


def fit_platt(pairs: Sequence[ScoredPair]) -> Platt:
    """The sigmoid under which what is true is most likely (Platt 1999, with his targets for small samples).

    Raises:
        CalibrationError: all pairs are of one kind or have one score, or the score does not rise
            with relevance.
    """
    scores = np.array([pair.score for pair in pairs], dtype=np.float64)
    relevant = np.array([pair.relevant for pair in pairs])
    positives = int(relevant.sum())
    negatives = len(pairs) - positives
    if not positives or not negatives:
        raise CalibrationError(f"{positives} pairs are relevant and {negatives} are not; both kinds are needed")
    middle, spread = float(scores.mean()), float(scores.std())
    if spread <= _SMALLEST * max(1.0, float(np.abs(scores).max())):
        raise CalibrationError("all pairs have the same score")
    targets = np.where(relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    slope, intercept = _newton((scores - middle) / spread, targets)
    if slope <= 0:
        raise CalibrationError("relevant pairs do not score higher than others; there is nothing to calibrate")
    return Platt(slope=slope / spread, intercept=intercept - slope * middle / spread)


def fit_temperature(answers: Sequence[Answer]) -> float:
    """The temperature under which the right answers are most likely (Guo et al. 2017).

    Raises:
        CalibrationError: no temperature from 0.01 to 100 is best.
    """
    weights = [np.log(np.maximum(_SMALLEST, answer.probabilities)) for answer in answers]

    def pull(sharpness: float) -> float:
        """Slope of the loss over the inverse temperature; it rises."""
        return math.fsum(
            float(_softmax(sharpness * own) @ own - own[answer.label])
            for own, answer in zip(weights, answers, strict=True)
        )

    low, high = 1 / _HIGHEST, 1 / _LOWEST
    if pull(low) >= 0:
        raise CalibrationError("the answers are no better than chance; no temperature would help")
    if pull(high) <= 0:
        raise CalibrationError("all answers are right beyond doubt; a temperature needs wrong ones to be fitted")
    for _ in range(_MOST_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pull(middle) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Generic[Example, Fitted]):
    """How a kind of calibration is fitted and judged.

    Args:
        fit: Parameters from examples.
        loss: Log loss and calibration error of examples under parameters; None: as they are.
    """

    fit: Callable[[Sequence[Example]], Fitted]
    loss: Callable[[Sequence[Example], Fitted | None], tuple[float, float]]

    def cross_fit(self, examples: Sequence[Example]) -> Fit:
        """What a fit does to examples that had no part in it: each half is judged by a fit on the other.

        Raises:
            CalibrationError: a half cannot be fitted.
        """
        halves = examples[::2], examples[1::2]
        if not halves[1]:
            raise CalibrationError("one example is not enough to fit and to judge")
        after = [self.loss(judged, self.fit(fitted)) for judged, fitted in (halves, halves[::-1])]
        before = [self.loss(judged, None) for judged in halves]
        share = len(halves[0]) / len(examples)

        def mean(values: Sequence[tuple[float, float]], which: int) -> float:
            return share * values[0][which] + (1 - share) * values[1][which]

        return Fit(
            num_examples=len(examples),
            log_loss_before=mean(before, 0),
            log_loss_after=mean(after, 0),
            ece_before=mean(before, 1),
            ece_after=mean(after, 1),
        )


def platt_loss(pairs: Sequence[ScoredPair], platt: Platt | None) -> tuple[float, float]:
    """Log loss and calibration error of probabilities of relevance."""
    believed = [
        (pair.relevance if platt is None else _sigmoid(platt.slope * pair.score + platt.intercept), pair.relevant)
        for pair in pairs
    ]
    losses = (-math.log(max(_SMALLEST, share if relevant else 1 - share)) for share, relevant in believed)
    return math.fsum(losses) / len(pairs), expected_calibration_error(believed)


def temperature_loss(answers: Sequence[Answer], temperature: float | None) -> tuple[float, float]:
    """Log loss and calibration error of answers."""
    if temperature is not None:
        answers = [_cooled(answer, temperature) for answer in answers]
    believed = [(answer.probabilities[answer.choice], answer.is_right) for answer in answers]
    return log_loss(answers), expected_calibration_error(believed)


PLATT: Final = Measured(fit=fit_platt, loss=platt_loss)
TEMPERATURE: Final = Measured(fit=fit_temperature, loss=temperature_loss)


def _cooled(answer: Answer, temperature: float) -> Answer:
    weights = np.log(np.maximum(_SMALLEST, answer.probabilities)) / temperature
    return Answer(probabilities=_softmax(weights).tolist(), label=answer.label)


def _newton(scores: Numbers, targets: Numbers) -> tuple[float, float]:
    """Slope and intercept of the logistic regression of ``targets`` on ``scores``."""
    design = np.stack([scores, np.ones_like(scores)], axis=1)
    parameters = np.zeros(2)
    loss = _cross_entropy(design @ parameters, targets)
    for _ in range(_MOST_STEPS):
        shares = 1 / (1 + np.exp(-(design @ parameters)))
        gradient = design.T @ (shares - targets)
        curvature = (design.T * (shares * (1 - shares))) @ design + _SMALLEST * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        tried = _cross_entropy(design @ (parameters - step), targets)
        while tried > loss and np.abs(step).max() > _SMALLEST:
            step = step / 2
            tried = _cross_entropy(design @ (parameters - step), targets)
        parameters, loss = parameters - step, tried
        if np.abs(step).max() < 1e-10:
            break
    return float(parameters[0]), float(parameters[1])


def _cross_entropy(values: Numbers, targets: Numbers) -> float:
    return float((np.logaddexp(0, values) - targets * values).sum())


def _softmax(values: Numbers) -> Numbers:
    weights = np.exp(values - values.max())
    shares: Numbers = weights / weights.sum()
    return shares


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else (power := math.exp(value)) / (1 + power)
