from __future__ import annotations

import gc
import weakref

import pytest
from torch import Tensor

from engine.records import LabelOutcome
from engine.step import StepFailed
from kernels.reference import ReferenceKernels
from tests.helpers.paper_engine import PaperEngine, cached_prefixes, check_cache
from tests.helpers.tries import RowSpec, make_row


def test_without_tasks_nothing_runs() -> None:
    assert PaperEngine().run_step() is None


def test_a_step_says_what_it_did() -> None:
    engine = PaperEngine(num_blocks=4, block_size=4, step_tokens=1000)
    engine.run([make_row([9] * 10)])
    engine.add([make_row([1, 2, 3, 4], keep=2), make_row([1, 2, 5], keep=0)])
    engine.add([RowSpec((1, 2, 3, 4, 6, 7), target=2, keep=6).row()], namespace="b")

    done = engine.run_step()

    assert done is not None
    _, stats = done
    assert (stats.num_rows, stats.num_tasks) == (3, 2)
    assert stats.computed_tokens == 5 + 6
    assert stats.kept_tokens == 2 + 6
    assert stats.read_rows == 1 + 1 + 2
    assert stats.evicted_tokens == 10 - 4
    # one for each node, one for the rows below the shared one
    assert stats.num_spans == 3 + 1 + 1
    assert min(stats.schedule_s, stats.prefill_s, stats.readout_s, stats.commit_s) > 0


def test_what_a_step_held_goes_with_it_and_does_not_wait_for_the_collector() -> None:
    engine = PaperEngine(step_tokens=1000)
    gone = []
    gc.disable()
    try:
        for _ in range(2):
            rows = [make_row([1, 2, 3, token], keep=2) for token in range(4)]
            gone += [weakref.ref(row.tokens) for row in rows]
            engine.run(rows)
            engine.decoder.step = None
        del rows

        assert [tokens() for tokens in gone] == [None] * 8
    finally:
        gc.enable()


def test_evictions_are_reported_once() -> None:
    engine = PaperEngine(num_blocks=2, block_size=4, step_tokens=1000)
    engine.run([make_row([1] * 8)])
    engine.run([make_row([2] * 8)])
    engine.run([make_row([2] * 8)])

    assert [step.evicted_tokens for step in engine.steps] == [0, 8, 0]


def test_what_a_step_cost_is_shared_by_its_tasks_and_its_tokens_are_not() -> None:
    engine = PaperEngine(step_tokens=1000)
    first = engine.add([make_row([1, 2, 3])])
    second = engine.add([make_row([1, 2, 4, 5])])

    engine.step()

    (step,) = engine.steps
    for task in (first, second):
        assert (task.num_steps, task.prefill_s, task.readout_s) == (1, step.prefill_s, step.readout_s)
        assert task.finished
        assert isinstance(task.rows[0].outcome, LabelOutcome)
    assert first.kept_tokens + second.kept_tokens == step.kept_tokens == 5
    assert first.rows[0].computed + second.rows[0].computed == step.computed_tokens == 5


@pytest.mark.parametrize("where", ["decoder", "readout"])
def test_a_step_that_fails_names_its_tasks_and_leaves_the_cache_as_it_was(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(_self: ReferenceKernels, *_inputs: object) -> Tensor:
        raise ArithmeticError

    engine = PaperEngine(step_tokens=16)
    engine.run([make_row([1, 2, 3])])
    before, free = cached_prefixes(engine.cache), engine.cache.num_free
    task = engine.add([make_row([1, 2, 3, 4]), make_row([5] * 10)])
    engine.add([make_row([6] * 10)])
    engine.decoder.fail = where == "decoder"
    if where == "readout":
        monkeypatch.setattr(ReferenceKernels, "label_logits", broken)

    with pytest.raises(StepFailed, match="a step of 2 rows and 11 tokens failed") as failed:
        engine.run_step()

    assert failed.value.step.tasks == [task]
    assert check_cache(engine.cache) == before
    assert engine.cache.num_free == free
    engine.scheduler.remove(task)
    assert engine.cache.num_pinned() == 0
