from __future__ import annotations

import math
from concurrent.futures import Future

import pytest

from engine import (
    EngineFault,
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    Outcome,
    Row,
    RowResult,
    RowUsage,
    ScoreResult,
    ScoreTask,
    TaskStats,
)
from scorer.model_host import LoadedModel
from scorer.selftest import self_test
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model


class ScriptedEngine(FakeEngine):
    """Gives the four golden pairs the values it is told."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = values

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        self.tasks.append(task)
        rows = tuple(
            RowResult(outcome=_outcome(row, value), usage=RowUsage(prompt_tokens=len(row.tokens)))
            for row, value in zip(task.rows, self.values, strict=True)
        )
        future: Future[ScoreResult] = Future()
        future.set_result(ScoreResult(rows=rows, stats=TaskStats(task_id=task.task_id, end="ok", num_rows=4)))
        return future


def _outcome(row: Row, value: float) -> Outcome:
    if isinstance(row.readout, LabelReadout):
        return LabelOutcome(logits=(value, 0.0), log_sum_exp=None)
    return LikelihoodOutcome(log_probs=(value,) * len(row.readout.target_ids))


def model(*values: float, template: str | None = None) -> LoadedModel:
    return fake_model(ScriptedEngine(*values), template=template)


@pytest.mark.parametrize("template", ["query-likelihood", "yes-no"])
def test_each_query_must_prefer_its_own_document(template: str) -> None:
    assert self_test(model(-1.0, -2.0, -2.0, -1.0, template=template)) is None
    assert self_test(model(-2.0, -1.0, -2.0, -1.0, template=template)) is not None
    assert self_test(model(-1.0, -2.0, -1.0, -2.0, template=template)) is not None


def test_scores_that_do_not_differ_are_not_an_order() -> None:
    fault = self_test(model(-1.0, -1.0, -1.0, -1.0))

    assert fault is not None
    assert "golden query 0" in fault


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_must_be_finite(bad: float) -> None:
    fault = self_test(model(-1.0, -2.0, -2.0, bad))

    assert fault is not None
    assert "golden pair 3" in fault


def test_pairs_that_cannot_be_built_are_a_fault() -> None:
    fault = self_test(fake_model(FakeEngine(max_row_tokens=5)))

    assert fault is not None


def test_nothing_of_it_stays_in_the_cache() -> None:
    loaded = model(-1.0, -2.0, -2.0, -1.0)
    self_test(loaded)

    assert isinstance(loaded.engine, ScriptedEngine)
    assert {row.keep_tokens for row in loaded.engine.tasks[0].rows} == {0}


def test_an_engine_that_fails_is_reported_as_such() -> None:
    engine = FakeEngine()
    engine.fail_with = EngineFault("a step failed")
    with pytest.raises(EngineFault):
        self_test(fake_model(engine))
