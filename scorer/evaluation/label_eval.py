"""How good answers are: accuracy, how far their probabilities are to be believed, and what their order does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NUM_BINS: Final = 10
_SMALLEST: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Probabilities of the options of one question.

    Args:
        label: Index of the right one.
        agreement: Share of the orders in which the answer is that of the mean; None: one order.
    """

    probabilities: Sequence[float]
    label: int
    agreement: float | None = None

    @property
    def choice(self) -> int:
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def is_right(self) -> bool:
        return self.choice == self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """Some answers, judged.

    Args:
        accuracy: Share of right answers, with the bounds of its 95 % interval (Wilson 1927).
        log_loss: Mean of minus the natural logarithm of the probability of the right option.
        ece: Expected calibration error in ten equal bins of the top probability (Guo et al. 2017).
        flips: Share of the questions whose answer is not the same in all orders; None: one order.
    """

    name: str
    num_questions: int
    accuracy: float
    low: float
    high: float
    log_loss: float
    ece: float
    flips: float | None


def judge_answers(name: str, answers: Sequence[Answer]) -> AnswerRow:
    """The measures over ``answers``, at least one."""
    right = sum(answer.is_right for answer in answers)
    low, high = wilson_interval(right, len(answers))
    orders = [answer.agreement for answer in answers if answer.agreement is not None]
    return AnswerRow(
        name=name,
        num_questions=len(answers),
        accuracy=right / len(answers),
        low=low,
        high=high,
        log_loss=log_loss(answers),
        ece=expected_calibration_error([(answer.probabilities[answer.choice], answer.is_right) for answer in answers]),
        flips=sum(agreement < 1 for agreement in orders) / len(orders) if orders else None,
    )


def log_loss(answers: Sequence[Answer]) -> float:
    losses = (-math.log(max(_SMALLEST, answer.probabilities[answer.label])) for answer in answers)
    return math.fsum(losses) / len(answers)


def expected_calibration_error(believed: Sequence[tuple[float, bool]]) -> float:
    """Mean gap between confidence and accuracy, by bins of confidence, weighed by their size.

    Args:
        believed: Confidence, and whether it was right.
    """
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, is_right in believed:
        bins.setdefault(min(NUM_BINS - 1, int(confidence * NUM_BINS)), []).append((confidence, is_right))
    gaps = (
        abs(math.fsum(confidence for confidence, _ in inside) - sum(is_right for _, is_right in inside))
        for inside in bins.values()
    )
    return math.fsum(gaps) / len(believed)


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Bounds of a share with 95 % confidence."""
    z = 1.959964
    share = successes / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
