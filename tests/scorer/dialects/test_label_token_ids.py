"""Labels of the caller's own, over a real engine: the bound is the width of the logits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.tiny_service import tiny_service
from tests.helpers.word_tokenizers import loaded

WIDTH = loaded("smollm").vocab_size
PROMPT: dict[str, Any] = {"query": [10, 11], "items": [[12]]}


def scores_of(reply: dict[str, Any]) -> list[float]:
    return reply["scores"][0] if "scores" in reply else [reply["data"][0]["score"]]


@pytest.mark.parametrize("path", ["/v1/score", "/generative_scoring"])
def test_b012_labels_outside_the_vocabulary_are_refused_and_hurt_nobody(path: str) -> None:
    good = PROMPT | {"label_token_ids": [0, WIDTH - 1]}
    with tiny_service() as client:
        before = client.post(path, json=good)
        for labels in ([-1], [WIDTH], [WIDTH + 10], [2**31], [2**63], [], [3, WIDTH]):
            reply = client.post(path, json=PROMPT | {"label_token_ids": labels})

            assert reply.status_code == 400, labels
            assert "label_token_ids" in reply.text
        after = client.post(path, json=good)

    assert before.status_code == after.status_code == 200
    assert scores_of(after.json()) == pytest.approx(scores_of(before.json()), rel=1e-4)


def test_b012_the_same_label_twice_is_refused_where_labels_must_be_distinct() -> None:
    with tiny_service() as client:
        reply = client.post("/v1/score", json=PROMPT | {"label_token_ids": [3, 3]})

    assert reply.status_code == 400
    assert "label_token_ids" in reply.text
