from __future__ import annotations

import pytest

from engine import TokenIds
from scorer.scoring.batch import BatchPlan
from scorer.scoring.readouts import LabelPlan, LikelihoodPlan, ReadoutPlan
from scorer.tokens.text_tokens import read_only_ids

IDS: tuple[TokenIds, ...] = tuple(read_only_ids([number]) for number in range(3))
THREE = LabelPlan(labels=("a", "b", "c"), ids=IDS, positive=0)


@pytest.mark.parametrize(
    ("num_pairs", "readouts", "num_numbers"),
    [
        (0, [], 0),
        (1, [LikelihoodPlan()], 2),
        (2, [THREE, THREE], 8),
        (1, [THREE, THREE, LikelihoodPlan()], 8),  # a pair that is read in parts
        (4, [THREE], 7),  # pairs that are read together
    ],
)
def test_the_numbers_of_an_answer_are_its_pairs_and_what_is_read_of_each_prompt(
    num_pairs: int, readouts: list[ReadoutPlan], num_numbers: int
) -> None:
    plan = BatchPlan(
        template="t@1",
        order="document_first",
        pairs=[(0, document) for document in range(num_pairs)],
        prompts=[],
        readouts=readouts,
        rows=(),
    )

    assert plan.num_numbers == num_numbers
