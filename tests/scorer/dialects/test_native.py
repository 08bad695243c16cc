from __future__ import annotations

import numpy as np
from msgspec import UNSET
from msgspec.structs import fields

from engine import RowUsage
from scorer.dialects.native import item_result
from scorer.dialects.schema import ItemResult, ItemUsage, QueryItem, ScoreRequest, TextItem
from scorer.scoring.batch import BatchPlan, ScoredItem
from scorer.scoring.readouts import LabelPlan
from scorer.scoring.scores import ItemScore

IDS = tuple(np.array([token], dtype=np.int32) for token in (3, 4))
PLAN = BatchPlan(
    template="t@1",
    order="query_first",
    pairs=[(0, 1), (1, 0)],
    prompts=[],
    readouts=[LabelPlan(labels=("a", "b"), ids=IDS, positive=0)] * 2,
    rows=(),
    templates=["t@1", "u@2"],
)
REQUEST = ScoreRequest(queries=["q", QueryItem("r", "R")], documents=[TextItem("d", "D"), "e"])


def test_every_field_of_a_score_is_answered_under_its_name() -> None:
    names = [field.name for field in fields(ItemScore)]
    score = ItemScore(**{name: f"value of {name}" for name in names})  # type: ignore[arg-type]
    item = ScoredItem(index=1, result=score, usage=RowUsage(prompt_tokens=9, cached_tokens=4), truncated_tokens=2)
    result = item_result(item, PLAN, REQUEST)

    assert [getattr(result, name) for name in names] == [getattr(score, name) for name in names]
    assert (result.index, result.query_index, result.document_index, result.status) == (1, 1, 0, "ok")
    assert (result.query_id, result.document_id, result.template) == ("R", "D", "u@2")
    assert result.usage == ItemUsage(
        prompt_tokens=9, cached_tokens=4, shared_tokens=0, computed_tokens=0, truncated_tokens=2
    )


def test_what_a_score_lacks_is_left_out() -> None:
    item = ScoredItem(index=0, result=ItemScore(score=0.0, relevance=0.5), usage=None, truncated_tokens=0)
    result = item_result(item, PLAN, REQUEST)

    assert {field.name for field in fields(ItemResult) if getattr(result, field.name) is UNSET} == {
        *(field.name for field in fields(ItemScore)[2:]),
        "usage",
        "error",
    }
    assert (result.score, result.relevance, result.query_id, result.document_id) == (0.0, 0.5, None, None)
