"""Dialects over a real engine: work is unique tokens, and reuse and company change no answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.service import SCORE
from tests.helpers.tiny_service import tiny_service
from tests.helpers.word_tokenizers import loaded

QUERY = list(range(10, 40))
ITEMS = [[50, 51, 52], [50, 51, 53, 54], [60], [50, 51, 52]]
PROMPTS: dict[str, Any] = {"query": QUERY, "items": ITEMS, "label_token_ids": [3, 4]}


def unique_positions(prompts: list[list[int]]) -> int:
    """Nodes of the trie of the prompts."""
    return len({tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)})


@pytest.mark.parametrize("path", ["/v1/score", "/generative_scoring"])
@pytest.mark.parametrize("item_first", [False, True])
def test_every_position_of_prompts_of_token_ids_is_computed_once(path: str, item_first: bool) -> None:
    prompts = [[*item, *QUERY] if item_first else [*QUERY, *item] for item in ITEMS]
    with tiny_service() as client:
        reply = client.post(path, json=PROMPTS | {"item_first": item_first})

    assert reply.json()["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert int(reply.headers["x-computed-tokens"]) == unique_positions(prompts)


def test_cold_warm_alone_and_in_company_scores_are_the_same() -> None:
    with tiny_service() as client:
        cold = client.post("/v1/score", json=PROMPTS)
        warm = client.post("/v1/score", json=PROMPTS)
    with tiny_service() as client:
        alone = [client.post("/v1/score", json=PROMPTS | {"items": [item]}).json()["scores"][0] for item in ITEMS]

    assert (cold.headers["x-cached-tokens"], warm.headers["x-cached-tokens"]) == ("0", str(len(QUERY) * len(ITEMS)))
    for one, other, own in zip(cold.json()["scores"], warm.json()["scores"], alone, strict=True):
        assert other == pytest.approx(one, abs=1e-5)
        assert own == pytest.approx(one, abs=1e-5)


def test_a_prompt_that_spells_the_template_meets_what_the_template_left_in_the_cache() -> None:
    yes, no = (loaded("smollm").tokenizer.encode(label).ids[0] for label in ("Yes", "No"))
    query, document = "what is a tree?", "a tree is a plant"
    spelt = (
        "<|im_start|>user\nJudge whether the document answers the query.\n\n"
        f"Document: {document}\n\nQuery: {query}\n\nReply with Yes or No only.<|im_end|>\n<|im_start|>assistant\n"
    )
    native = {"queries": [query], "documents": [document], "template": "yes-no@1", "cache": {"keep": "all"}}
    raw = {"query": spelt, "items": [""], "label_token_ids": [yes, no], "apply_softmax": True}
    with tiny_service() as client:
        wanted = client.post(SCORE, json=native).json()["results"][0]
        reply = client.post("/v1/score", json=raw)

    tokens = wanted["usage"]["prompt_tokens"]
    assert (reply.headers["x-cached-tokens"], reply.headers["x-computed-tokens"]) == (str(tokens - 1), "1")
    assert reply.json()["scores"][0][0] == pytest.approx(wanted["score"], abs=1e-5)


def test_questions_cost_their_text_once_and_answer_as_the_native_route_does() -> None:
    asked = {
        f"q{number}": {"type": "score", "instructions": f"{number} trees?", "criteria": ["no", "yes"]}
        for number in range(5)
    }
    queries = [
        {
            "text": f"{number} trees?\n\n0. no\n1. yes\n\nReply with the number of one level only.",
            "template": "decision@1",
            "readout": {"labels": ["0", "1"], "label_mass": True},
        }
        for number in range(5)
    ]
    state = "a tree is a plant " * 60
    with tiny_service() as client:
        reply = client.post("/v1/systemone", json={"state": state, "questions": asked})
        native = client.post(SCORE, json={"documents": [state], "queries": queries}).json()

    assert int(reply.headers["x-computed-tokens"]) < reply.json()["usage"]["input_tokens"] / 3
    for answer, result in zip(reply.json()["answers"].values(), native["results"], strict=True):
        assert answer["probabilities"] == pytest.approx(result["labels"], abs=1e-5)
        assert answer["x_label_mass"] == pytest.approx(result["label_mass"], abs=1e-5)
