from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scorer.errors import InvalidValue
from scorer.model_host import LoadedModel
from scorer.scoring.prompt_plan import plan_prompts
from scorer.scoring.prompt_request import PromptRequest, TextOrIds
from scorer.scoring.raw_texts import RawTexts
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model
from tests.helpers.word_tokenizers import loaded

BOS = 7
TOKENIZER = replace(loaded("smollm"), lead_ids=(BOS,))


def ids(text: str) -> list[int]:
    return list(TOKENIZER.tokenizer.encode(text).ids)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """One whose published tokenizer puts a token before every text."""
    return replace(fake_model(FakeEngine(max_row_tokens=50)), texts=RawTexts(TOKENIZER, TextMemo(10_000)))


def ask(query: TextOrIds, items: Sequence[TextOrIds], **options: Any) -> PromptRequest:
    settings: dict[str, Any] = {"model": None, "labels": [[3]], "normalise": "vocabulary"} | options
    return PromptRequest(query=query, items=items, **settings)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("item_first", [False, True])
def test_what_comes_before_a_text_comes_once_and_first(model: LoadedModel, joined: bool, item_first: bool) -> None:
    (row,) = plan_prompts(ask("a tree ", ["is"], joined=joined, item_first=item_first), model, max_pairs=9).rows

    assert row.tokens[0] == BOS
    assert BOS not in row.tokens[1:]


def test_nothing_comes_before_token_ids_or_where_it_is_not_wanted(model: LoadedModel) -> None:
    of_ids = plan_prompts(ask([1, 2], [[3], [4, 5]]), model, max_pairs=9).rows
    without = plan_prompts(ask("a tree", [" is"], lead=False), model, max_pairs=9).rows

    assert [row.tokens.tolist() for row in of_ids] == [[1, 2, 3], [1, 2, 4, 5]]
    assert without[0].tokens.tolist() == ids("a tree") + ids(" is")


def test_texts_and_token_ids_may_stand_together(model: LoadedModel) -> None:
    rows = plan_prompts(ask("a tree", [[5, 6]], joined=True), model, max_pairs=9).rows

    assert rows[0].tokens.tolist() == [BOS, *ids("a tree"), 5, 6]
    assert rows[0].keep_tokens == 1 + len(ids("a tree"))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask([1], [[2]] * 10), "items"),
        (ask([1], [[2]], labels=[[]]), "label_token_ids"),
        (ask([1], [[2], [3]], labels=[[4], [5, 5]]), "label_token_ids[1]"),
        (ask([1], [[2], [3]], labels=[[4], [1000]]), "label_token_ids[1][0]"),
        (ask([1000], [[2]]), "query[0]"),
        (ask([1], [[2], [3, -1]]), "items[1][1]"),
        (ask("\ud800", ["a"]), "query"),
        (ask([], [[1], []]), "items[1]"),
        (ask([1] * 30, [[2], [3] * 21]), "items[1]"),
    ],
)
def test_what_cannot_be_served_is_named(model: LoadedModel, request_: PromptRequest, field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        plan_prompts(request_, model, max_pairs=9)

    assert refused.value.field == field
