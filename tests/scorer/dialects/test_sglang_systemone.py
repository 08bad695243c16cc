from __future__ import annotations

import pytest

from scorer.dialects.sglang_systemone import choice_confidence, score_confidence


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [([0.5, 0.5], 0.0), ([1.0, 0.0], 1.0), ([0.83, 0.1, 0.07], 0.745), ([1 / 3] * 3, 0.0), ([0.8, 0.2], 0.6)],
)
def test_a_choice_is_as_certain_as_it_is_above_an_equal_share(probabilities: list[float], confidence: float) -> None:
    assert choice_confidence(probabilities) == pytest.approx(confidence, abs=1e-7)


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [
        ([0.0, 1.0, 0.0], 1.0),
        ([0.25, 0.5, 0.25], 1 - 0.5 / (2 / 3)),  # half a level off; by chance it would be two thirds
        ([0.5, 0.0, 0.0, 0.5], 0.0),  # further from the top than chance: not below 0
        ([0.9, 0.1], 0.8),
    ],
)
def test_a_score_is_as_certain_as_its_levels_lie_together(probabilities: list[float], confidence: float) -> None:
    assert score_confidence(probabilities) == pytest.approx(confidence, abs=1e-7)
