from __future__ import annotations

import math
from typing import Any

import pytest

from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import RERANK, SCORE, service

DOCUMENTS = ["a tree is a plant", "nobody is there", "something else"]
BODY: dict[str, Any] = {"query": "what is a tree?", "documents": DOCUMENTS}


def test_results_are_sorted_best_first_with_scores_between_0_and_1() -> None:
    with service() as client:
        reply = client.post(RERANK, json=BODY).json()

    scores = [each["relevance_score"] for each in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert sorted(each["index"] for each in reply["results"]) == [0, 1, 2]


def test_relevance_is_exp_of_the_mean_log_probability() -> None:
    with service() as client:
        native = client.post(SCORE, json={"queries": [BODY["query"]], "documents": DOCUMENTS}).json()["results"]
        ranked = client.post(RERANK, json=BODY).json()["results"]

    for each in ranked:
        assert each["relevance_score"] == pytest.approx(math.exp(native[each["index"]]["score"]), rel=1e-4)


def test_relevance_is_the_probability_of_the_positive_label_under_a_label_template() -> None:
    with service(template="yes-no") as client:
        native = client.post(SCORE, json={"queries": [BODY["query"]], "documents": DOCUMENTS}).json()["results"]
        ranked = client.post(RERANK, json=BODY).json()["results"]

    assert {each["index"]: each["relevance_score"] for each in ranked} == {
        each["index"]: each["labels"]["Yes"] for each in native
    }


def test_the_reply_has_what_clients_of_jina_and_cohere_read() -> None:
    with service() as client:
        reply = client.post(RERANK, json=BODY).json()

    usage = reply["usage"]
    assert reply["object"] == "list"
    assert reply["model"] == "fake"
    assert reply["id"]
    assert usage["total_tokens"] == usage["prompt_tokens"] > 0
    assert usage["prompt_tokens"] == (
        usage["prompt_tokens_details"]["cached_tokens"] + usage["shared_tokens"] + usage["computed_tokens"]
    )
    assert reply["meta"]["tokens"] == {"input_tokens": usage["prompt_tokens"], "output_tokens": 0}
    assert "errors" not in reply
    assert all(set(each) == {"index", "relevance_score"} for each in reply["results"])


@pytest.mark.parametrize(
    "extra",
    [
        {"model": "rerank-v3.5", "max_tokens_per_doc": None, "top_n": None},
        {"return_documents": None, "top_n": None, "top_k": None, "truncation": None, "instruction": None},
        {"max_tokens_per_doc": 0, "max_tokens_per_query": 0, "request_id": None},
        {"user": "me", "max_chunks_per_doc": 3, "overlap_tokens": 4, "priority": {"x": [1]}},
        {"query": {"text": "what is a tree?"}},
        {"documents": [{"text": text, "title": "other"} for text in DOCUMENTS]},
    ],
)
def test_what_clients_in_the_field_send_is_taken(extra: dict[str, Any]) -> None:
    with service() as client:
        plain = client.post(RERANK, json=BODY).json()["results"]
        reply = client.post(RERANK, json=BODY | extra)

    assert reply.status_code == 200
    assert reply.json()["results"] == plain


def test_documents_come_back_only_when_asked_for() -> None:
    with service() as client:
        results = client.post(RERANK, json=BODY | {"return_documents": True}).json()["results"]

    assert {each["index"]: each["document"] for each in results} == {
        index: {"text": text} for index, text in enumerate(DOCUMENTS)
    }


@pytest.mark.parametrize(("top_n", "num_results"), [(None, 3), (1, 1), (3, 3), (4, 3), (1000, 3)])
def test_b014_top_n_within_its_bounds(top_n: int | None, num_results: int) -> None:
    with service() as client:
        everything = client.post(RERANK, json=BODY).json()["results"]
        results = client.post(RERANK, json=BODY | {"top_n": top_n}).json()["results"]

    assert results == everything[:num_results]


@pytest.mark.parametrize("top_n", [0, -1, True, 2.0, "2", 2**64])
def test_b014_top_n_outside_its_bounds_is_refused(top_n: object) -> None:
    with service() as client:
        reply = client.post(RERANK, json=BODY | {"top_n": top_n})

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == "top_n"


def test_top_n_and_top_k_must_not_disagree() -> None:
    with service() as client:
        agreeing = client.post(RERANK, json=BODY | {"top_n": 2, "top_k": 2})
        disagreeing = client.post(RERANK, json=BODY | {"top_n": 2, "top_k": 3})

    assert len(agreeing.json()["results"]) == 2
    assert disagreeing.status_code == 422


def test_equal_scores_keep_the_order_of_their_index() -> None:
    with service() as client:
        results = client.post(RERANK, json={"query": "q", "documents": ["same"] * 4}).json()["results"]

    assert [each["index"] for each in results] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"documents": DOCUMENTS}, "body"),
        ({"query": "q"}, "body"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"query": None, "documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a", "b"]}, "query"),
        ({"query": "alpha " * 2000, "documents": ["a", "b"]}, "query"),
    ],
)
def test_what_cannot_be_ranked_is_refused_with_its_path(body: dict[str, Any], field: str) -> None:
    with service(FakeEngine(max_row_tokens=300)) as client:
        reply = client.post(RERANK, json=body)

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == field


def test_b006_over_long_documents_are_cut_or_refused_whatever_their_number() -> None:
    long = "alpha beta " * 300
    with service() as client:
        for documents, index in (([long], 0), ([long, "b", "c"], 0), (["b", "c", long], 2)):
            body = {"query": "q", "documents": documents, "max_tokens_per_doc": 50}
            cut = client.post(RERANK, json=body).json()["results"]
            refused = client.post(RERANK, json=body | {"truncation": False})

            assert [each["index"] for each in cut if "truncated_tokens" in each] == [index]
            assert len(cut) == len(documents)
            assert refused.status_code == 422
            assert refused.json()["error"]["field"] == f"documents[{index}]"
            assert refused.json()["error"]["limit"] == 50


def test_b007_empty_and_blank_documents_are_ranked() -> None:
    documents = ["", "   ", "\n\t", "real text"]
    with service() as client:
        results = client.post(RERANK, json={"query": "what?", "documents": documents}).json()["results"]

    assert sorted(each["index"] for each in results) == [0, 1, 2, 3]
    assert all(math.isfinite(each["relevance_score"]) for each in results)


def test_b010_a_document_without_a_finite_score_is_named_and_not_ranked() -> None:
    engine = FakeEngine()
    engine.poison = {1: math.nan}
    with service(engine) as client:
        reply = client.post(RERANK, json=BODY)

    assert reply.status_code == 200
    assert sorted(each["index"] for each in reply.json()["results"]) == [0, 2]
    assert [each["index"] for each in reply.json()["errors"]] == [1]
    assert reply.json()["errors"][0]["error"]["code"] == "non_finite_score"


def test_b010_no_finite_score_at_all_is_a_fault() -> None:
    engine = FakeEngine()
    engine.poison = dict.fromkeys(range(3), math.inf)
    with service(engine) as client:
        reply = client.post(RERANK, json=BODY)

    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "non_finite_score"


def test_documents_that_the_deadline_overtook_are_named() -> None:
    engine = FakeEngine()
    engine.late = {2}
    with service(engine) as client:
        reply = client.post(RERANK, json=BODY).json()

    assert [each["index"] for each in reply["errors"]] == [2]
    assert reply["errors"][0]["error"]["code"] == "deadline_exceeded"


def test_a_deadline_is_that_of_the_task_and_has_a_limit() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        for told in ({"deadline_ms": 5000}, {"deadline_ms": None}):
            assert client.post(RERANK, json=BODY | told).status_code == 200
        refused = client.post(RERANK, json=BODY | {"deadline_ms": 10**9})

    soon, late = (task.deadline_s or 0.0 for task in engine.tasks)
    assert soon + 10 < late
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "deadline_ms")


def test_an_instruction_reaches_the_prompt() -> None:
    with service() as client:
        plain = client.post(RERANK, json=BODY).json()["results"]
        told = client.post(RERANK, json=BODY | {"instruction": "Be strict."}).json()["results"]

    assert plain != told
