from __future__ import annotations

import pytest

from engine.sample_steps import sample_step
from kernels.checks import check_span_table

BLOCK_SIZE = 4


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("cached", [0, 1, 10])
def test_steps_are_sound(tokens: int, cached: int) -> None:
    step = sample_step(tokens, cached=cached, block_size=BLOCK_SIZE)
    check_span_table(step.spans, num_fresh=tokens, num_slots=-(-cached // BLOCK_SIZE) * BLOCK_SIZE)

    assert len(step.tokens) == len(step.read_rows) == tokens
    assert step.spans.positions.min() == cached
    assert len(step.keep_rows) == 0


def test_steps_can_fill_the_slots_that_others_read() -> None:
    step = sample_step(9, cached=0, block_size=BLOCK_SIZE, kept=9)

    assert step.keep_slots.tolist() == step.keep_rows.tolist() == list(range(9))
    assert step.spans.positions.tolist() == list(range(9))
