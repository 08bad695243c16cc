from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.batch import RowReads
from engine.prefix_tree import Match, PrefixTree
from engine.readout import LmHead, ask, read_out
from engine.records import LabelOutcome, LabelReadout, LikelihoodOutcome, LikelihoodReadout, Readout, Row, Unscored
from engine.sequence import RowState, TaskState
from engine.step_trie import StepRow
from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from tests.helpers.paper_engine import make_task

VOCABULARY, WIDTH = 50, 8


@pytest.fixture
def head() -> Tensor:
    return torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))


def task_for(*readouts: Readout) -> TaskState:
    return make_task([Row(tokens=np.zeros(10, dtype=np.int32), readout=readout, keep_tokens=0) for readout in readouts])


def reads(state: RowState, task: TaskState, places: list[int], *, end: int = 10) -> RowReads:
    match = Match(PrefixTree(4).root("a"))
    row = StepRow(task, state, end, 0, match)
    return RowReads(row=row, first=state.first_unread, places=places)


def target(*tokens: int) -> LikelihoodReadout:
    return LikelihoodReadout(target_ids=np.array(tokens, dtype=np.int32))


class CountingKernels(ReferenceKernels):
    def __init__(self) -> None:
        self.full_rows: list[int] = []

    def log_sum_exp(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        self.full_rows.append(len(hidden))
        return super().log_sum_exp(hidden, head, soft_cap)


def run(wanted: list[RowReads], hidden: Tensor, head: Tensor, kernels: KernelSet | None = None) -> None:
    questions = ask(wanted, num_rows=len(hidden), device=hidden.device)
    read_out(questions, hidden, LmHead(weight=head), kernels or ReferenceKernels())


def test_labels_are_logits_of_their_tokens_in_their_order(hidden: Tensor, head: Tensor) -> None:
    task = task_for(LabelReadout(label_ids=(7, 3)), LabelReadout(label_ids=(49, 0), log_sum_exp=True))

    run([reads(task.rows[0], task, [4]), reads(task.rows[1], task, [2])], hidden, head)

    logits = hidden @ head.T
    first, second = (state.outcome for state in task.rows)
    assert isinstance(first, LabelOutcome)
    assert isinstance(second, LabelOutcome)
    assert first.logits == pytest.approx(logits[4, [7, 3]].tolist(), abs=1e-5)
    assert first.log_sum_exp is None
    assert second.logits == pytest.approx(logits[2, [49, 0]].tolist(), abs=1e-5)
    assert second.log_sum_exp == pytest.approx(logits[2].logsumexp(0).item(), abs=1e-5)


def test_hidden_states_that_are_read_in_their_order_are_not_copied(hidden: Tensor, head: Tensor) -> None:
    class Watching(ReferenceKernels):
        def label_logits(
            self, hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None = None
        ) -> Tensor:
            got.append(hidden.data_ptr())
            return super().label_logits(hidden, head, label_ids, soft_cap)

    got: list[int] = []
    task = task_for(*[LabelReadout(label_ids=(7, 3))] * 4)

    run([reads(state, task, [place]) for place, state in enumerate(task.rows[:2])], hidden[:2], head, Watching())
    run(
        [reads(state, task, [place]) for place, state in zip((1, 0), task.rows[2:], strict=True)],
        hidden[:2],
        head,
        Watching(),
    )

    assert got[0] == hidden.data_ptr()
    assert got[1] != hidden.data_ptr()
    logits = (hidden @ head.T)[:, [7, 3]].tolist()
    for state, place in zip(task.rows, (0, 1, 1, 0), strict=True):
        assert isinstance(state.outcome, LabelOutcome)
        assert state.outcome.logits == pytest.approx(logits[place], abs=1e-5)


def test_a_target_is_read_from_the_position_before_each_of_its_tokens(hidden: Tensor, head: Tensor) -> None:
    task = task_for(target(5, 6, 7))

    run([reads(task.rows[0], task, [1, 3, 5])], hidden, head)

    log_probs = (hidden @ head.T).log_softmax(-1)
    outcome = task.rows[0].outcome
    assert isinstance(outcome, LikelihoodOutcome)
    assert outcome.log_probs == pytest.approx(log_probs[[1, 3, 5], [5, 6, 7]].tolist(), abs=1e-5)


def test_a_target_that_is_read_in_chunks_is_the_target_read_at_once(hidden: Tensor, head: Tensor) -> None:
    task = task_for(target(5, 6, 7), target(5, 6, 7))
    whole, cut = task.rows

    run([reads(whole, task, [1, 3, 5]), reads(cut, task, [1], end=8)], hidden, head)
    assert cut.outcome is None
    assert (cut.first_unread, len(cut.log_probs)) == (8, 1)
    run([reads(cut, task, [3, 5])], hidden, head)

    assert cut.outcome == whole.outcome


def test_rows_of_all_kinds_are_read_together(hidden: Tensor, head: Tensor) -> None:
    task = task_for(
        LabelReadout(label_ids=(1,)),
        target(2),
        LabelReadout(label_ids=(3, 4), log_sum_exp=True),
        LabelReadout(label_ids=(5, 6)),
        target(7, 8),
    )
    places = [[0], [0], [1], [1], [2, 3]]

    run([reads(state, task, place) for state, place in zip(task.rows, places, strict=True)], hidden, head)

    logits = hidden @ head.T
    log_probs = logits.log_softmax(-1)
    found: list[float] = []
    for state in task.rows:
        match state.outcome:
            case LabelOutcome(logits=values) | LikelihoodOutcome(log_probs=values):
                found += values
            case other:
                pytest.fail(str(other))
    expected = [*logits[0, [1]], log_probs[0, 2], *logits[1, [3, 4]], *logits[1, [5, 6]]]
    expected += [log_probs[2, 7], log_probs[3, 8]]
    assert found == pytest.approx([value.item() for value in expected], abs=1e-5)


def test_the_whole_vocabulary_is_read_only_where_it_is_needed_and_once(hidden: Tensor, head: Tensor) -> None:
    kernels = CountingKernels()
    task = task_for(LabelReadout(label_ids=(1,)), LabelReadout(label_ids=(2,)))
    run([reads(state, task, [place]) for place, state in enumerate(task.rows)], hidden, head, kernels)
    assert kernels.full_rows == []

    task = task_for(LabelReadout(label_ids=(1,), log_sum_exp=True), target(2), target(3), LabelReadout(label_ids=(4,)))
    places = [[0], [0], [1], [2]]
    run([reads(s, task, place) for s, place in zip(task.rows, places, strict=True)], hidden, head, kernels)
    assert kernels.full_rows == [2]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_no_score(hidden: Tensor, head: Tensor, number: float) -> None:
    task = task_for(LabelReadout(label_ids=(1, 2)), target(1, 2), LabelReadout(label_ids=(1, 2)))
    hidden[3] = number

    run([reads(s, task, p) for s, p in zip(task.rows, [[3], [2, 3], [4]], strict=True)], hidden, head)

    unscored = Unscored(reason="non_finite")
    assert [state.outcome == unscored for state in task.rows] == [True, True, False]


def test_a_denominator_that_is_not_finite_leaves_only_those_who_asked_for_it_unscored(
    hidden: Tensor, head: Tensor
) -> None:
    head[40] = math.nan
    task = task_for(LabelReadout(label_ids=(1,)), LabelReadout(label_ids=(1,), log_sum_exp=True), target(1))

    run([reads(state, task, [0]) for state in task.rows], hidden, head)

    unscored = Unscored(reason="non_finite")
    assert [state.outcome == unscored for state in task.rows] == [False, True, True]


def test_nothing_to_read_is_nothing_to_do(head: Tensor) -> None:
    run([], torch.empty(0, WIDTH), head)


def test_all_readouts_of_a_step_come_back_in_one_copy(
    hidden: Tensor, head: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_for(
        LabelReadout(label_ids=(7, 3), log_sum_exp=True),
        LabelReadout(label_ids=(1,)),
        target(4, 9),
        LabelReadout(label_ids=(8, 2)),
    )
    copies: list[int] = []
    plain = Tensor.cpu

    def counted(tensor: Tensor) -> Tensor:
        copies.append(tensor.numel())
        return plain(tensor)

    places = [[4], [2], [0, 1], [5]]
    wanted = [reads(state, task, at) for state, at in zip(task.rows, places, strict=True)]
    monkeypatch.setattr(Tensor, "cpu", counted)
    run(wanted, hidden, head)

    assert copies == [3 + 2 + 1 + 2 + 2]  # denominators of three rows, then logits
    assert all(state.outcome is not None for state in task.rows)
