from __future__ import annotations

import numpy as np
import pytest

from engine import LabelReadout, LikelihoodReadout, TokenIds
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.readouts import LabelPlan, LikelihoodPlan, ReadoutPlan
from scorer.scoring.rows import Keep, plan_rows


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def prompt(*context: int, target: TokenIds | None = None, reusable: int = 2) -> PairPrompt:
    return PairPrompt(context=ids(*context), target=target, reusable_tokens=reusable)


BROKEN = PromptError(code="query_too_long", slot="query", message="too long", tokens=9, limit=5)


def test_a_likelihood_row_is_the_context_and_the_target_without_its_last_token() -> None:
    (row,) = plan_rows([prompt(1, 2, 3, target=ids(7, 8, 9))], [LikelihoodPlan()], "auto")

    assert row.tokens.tolist() == [1, 2, 3, 7, 8]
    assert isinstance(row.readout, LikelihoodReadout)
    assert row.readout.target_ids.tolist() == [7, 8, 9]


@pytest.mark.parametrize(("mass", "normalise"), [(False, "labels"), (True, "labels"), (False, "vocabulary")])
def test_labels_of_one_token_are_read_together(mass: bool, normalise: str) -> None:
    plan = LabelPlan(labels=("a", "b"), ids=(ids(7), ids(8)), positive=0, label_mass=mass, normalise=normalise)  # type: ignore[arg-type]
    (row,) = plan_rows([prompt(1, 2, 3)], [plan], "auto")

    assert row.tokens.tolist() == [1, 2, 3]
    assert row.readout == LabelReadout(label_ids=(7, 8), log_sum_exp=mass or normalise == "vocabulary")


def test_labels_of_several_tokens_are_branches_behind_the_prompt() -> None:
    plan = LabelPlan(labels=("a", "b"), ids=(ids(7), ids(8, 9)), positive=0)
    rows = plan_rows([prompt(1, 2, 3), prompt(1, 2, 4)], [plan] * 2, "all")

    assert [row.tokens.tolist() for row in rows] == [[1, 2, 3], [1, 2, 3, 8], [1, 2, 4], [1, 2, 4, 8]]
    assert [row.keep_tokens for row in rows] == [3, 3, 3, 3]  # the prompt is worth keeping, a label is not


def test_a_prompt_that_could_not_be_built_has_no_row() -> None:
    rows = plan_rows([BROKEN, prompt(1, 2, target=ids(7)), BROKEN], [LikelihoodPlan()] * 3, "auto")

    assert len(rows) == 1


def test_every_prompt_has_a_readout_of_its_own() -> None:
    readouts: list[ReadoutPlan] = [
        LabelPlan(labels=("a",), ids=(ids(7),), positive=0),
        LikelihoodPlan(),
        LabelPlan(labels=("a", "b"), ids=(ids(8), ids(8, 9)), positive=0),
    ]
    rows = plan_rows([prompt(1, 2), BROKEN, prompt(3, 4)], readouts, "auto")

    assert [row.tokens.tolist() for row in rows] == [[1, 2], [3, 4], [3, 4, 8]]


@pytest.mark.parametrize(("keep", "kept"), [("none", [0, 0]), ("auto", [4, 3]), ("prefix", [2, 2]), ("all", [6, 5])])
def test_what_is_kept(keep: Keep, kept: list[int]) -> None:
    prompts = [prompt(1, 2, 3, 4, target=ids(7, 8, 9), reusable=4), prompt(1, 2, 5, target=ids(7, 8, 9), reusable=3)]

    assert [row.keep_tokens for row in plan_rows(prompts, [LikelihoodPlan()] * 2, keep)] == kept
    assert plan_rows([BROKEN], [LikelihoodPlan()], keep) == ()


def test_the_common_prefix_of_one_prompt_is_the_prompt() -> None:
    (row,) = plan_rows([prompt(1, 2, 3, target=ids(7))], [LikelihoodPlan()], "prefix")

    assert row.keep_tokens == 3
