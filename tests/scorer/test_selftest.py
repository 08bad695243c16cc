from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from engine import (
    EngineFault,
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    LikelihoodReadout,
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
from scorer.tokens.safe_cuts import SafeCuts
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model
from tests.helpers.word_tokenizers import loaded


class ScriptedEngine(FakeEngine):
    """Gives the four golden pairs the values it is told."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = values

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        self.tasks.append(task)
        return answered(task, [_outcome(row, value) for row, value in zip(task.rows, self.values, strict=True)])


def answered(task: ScoreTask, outcomes: Sequence[Outcome]) -> Future[ScoreResult]:
    rows = tuple(
        RowResult(outcome=outcome, usage=RowUsage(prompt_tokens=len(row.tokens)))
        for row, outcome in zip(task.rows, outcomes, strict=True)
    )
    future: Future[ScoreResult] = Future()
    future.set_result(ScoreResult(rows=rows, stats=TaskStats(task_id=task.task_id, end="ok", num_rows=len(rows))))
    return future


def prompt_of(row: Row) -> str:
    return loaded("smollm").tokenizer.decode(row.tokens.tolist())


def _outcome(row: Row, value: float) -> Outcome:
    if isinstance(row.readout, LabelReadout):
        return LabelOutcome(logits=(value, 0.0), log_sum_exp=None)
    assert isinstance(row.readout, LikelihoodReadout)
    return LikelihoodOutcome(log_probs=(value,) * len(row.readout.target_ids))


def model(*values: float, template: str | None = None) -> LoadedModel:
    return fake_model(ScriptedEngine(*values), template=template)


@pytest.mark.parametrize("template", ["query-likelihood", "yes-no"])
def test_each_query_must_prefer_its_own_document(template: str) -> None:
    assert self_test(model(-1.0, -2.0, -2.0, -1.0, template=template)) is None
    assert self_test(model(-2.0, -1.0, -2.0, -1.0, template=template)) is not None
    assert self_test(model(-1.0, -2.0, -1.0, -2.0, template=template)) is not None


@pytest.mark.parametrize("template", ["graded", "mxbai-rerank-base-v2", "zerank", "bge-reranker-v2-gemma", "classify"])
def test_templates_with_scores_of_their_own_are_held_to_the_same_order(template: str) -> None:
    assert self_test(fake_model(RankedEngine(), template=template)) is None
    fault = self_test(fake_model(RankedEngine(upside_down=True), template=template))

    assert fault is not None
    assert "golden query" in fault


class RankedEngine(FakeEngine):
    """Likes prompts in which query and document are about one thing; or the others."""

    def __init__(self, *, upside_down: bool = False) -> None:
        super().__init__()
        self.sign = -1.0 if upside_down else 1.0

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        return answered(task, [self._read(row) for row in task.rows])

    def _read(self, row: Row) -> Outcome:
        own = ("France?" in prompt_of(row)) == ("Paris is" in prompt_of(row))
        value = self.sign * (1.0 if own else -1.0)
        if isinstance(row.readout, LikelihoodReadout):
            return LikelihoodOutcome(log_probs=(value,) * len(row.readout.target_ids))
        assert isinstance(row.readout, LabelReadout)
        count = len(row.readout.label_ids)
        # the first label is the positive one, except that the five grades rise
        places = range(count) if count == 5 else range(count, 0, -1)
        return LabelOutcome(logits=tuple(value * place for place in places), log_sum_exp=None)


@pytest.mark.parametrize("template", ["listwise", "pairwise"])
def test_documents_that_are_compared_must_come_out_in_order(template: str) -> None:
    assert self_test(fake_model(ComparingEngine(), template=template)) is None
    assert self_test(fake_model(ComparingEngine(upside_down=True), template=template)) is not None


def test_a_model_that_takes_whatever_comes_first_orders_no_pairs() -> None:
    assert self_test(fake_model(ComparingEngine(blind=True), template="pairwise")) is not None


def test_a_template_that_lists_options_must_choose_the_right_ones() -> None:
    assert self_test(fake_model(ComparingEngine(after="Question: "), template="multiple-choice")) is None
    fault = self_test(fake_model(ComparingEngine(after="Question: ", blind=True), template="multiple-choice"))

    assert fault is not None
    assert "gives its own answer a probability of 0.5" in fault


class ComparingEngine(FakeEngine):
    """Answers with the letter of the text that fits the query.

    Args:
        after: What the listed texts come after.
        upside_down: With the letter of the other one.
        blind: With the first letter.
    """

    def __init__(self, *, after: str = "", upside_down: bool = False, blind: bool = False) -> None:
        super().__init__()
        self.after, self.upside_down, self.blind = after, upside_down, blind

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        return answered(task, [self._read(row) for row in task.rows])

    def _read(self, row: Row) -> Outcome:
        text = prompt_of(row).partition(self.after)[2] if self.after else prompt_of(row)
        wanted, other = ("Paris", "nectar") if "France?" in text else ("nectar", "Paris")
        first = self.blind or (text.index(wanted) < text.index(other)) != self.upside_down
        assert isinstance(row.readout, LabelReadout)
        # labels are read in the order of the request; the first letter has the smaller id
        letters = row.readout.label_ids
        logits = tuple(float((letter == min(letters)) == first) for letter in letters)
        return LabelOutcome(logits=logits, log_sum_exp=None)


def test_a_prompt_that_is_not_what_it_should_be_fails_the_test_by_the_name_of_its_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SafeCuts, "find", lambda _self, literal: list(range(1, len(literal))))
    fault = self_test(model(-1.0, -2.0, -2.0, -1.0))

    assert fault is not None
    assert "template classify@1, document_first" in fault


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
