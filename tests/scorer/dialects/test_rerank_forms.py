"""What each rerank-shaped dialect takes and answers, to the letter; scores are those of the native route."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, service

QUERY = "what is a tree?"
TEXTS = ["a tree is a plant", "nobody is there", "something else"]
PASSAGES = [{"text": text} for text in TEXTS]
LONG = "alpha beta " * 400
ANY = object()
"""Stands for a value that changes from run to run."""


class Ranking:
    """What the native route says of the texts."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self.relevance = [float(f"{math.exp(each['score']):.7g}") for each in results]
        self.order = sorted(range(len(results)), key=lambda index: -self.relevance[index])
        self.tokens = sum(each["usage"]["prompt_tokens"] for each in results)

    @property
    def best(self) -> int:
        return self.order[0]


Ask = Callable[[str, object], httpx.Response]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Posts to one service that nothing is wrong with."""
    with service() as client:
        yield lambda path, body: client.post(path, json=body)


@pytest.fixture(scope="module")
def native(ask: Ask) -> Ranking:
    return Ranking(ask(SCORE, {"queries": [QUERY], "documents": TEXTS}).json()["results"])


def post(path: str, body: object, engine: FakeEngine) -> httpx.Response:
    with service(engine) as client:
        return client.post(path, json=body)


def matches(got: Any, wanted: Any) -> bool:
    if wanted is ANY:
        return got is not None
    if isinstance(wanted, dict):
        return isinstance(got, dict) and got.keys() == wanted.keys() and all(matches(got[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(matches, got, wanted))
    if isinstance(wanted, float):
        return isinstance(got, int | float) and math.isclose(got, wanted, rel_tol=1e-5)
    return type(got) is type(wanted) and bool(got == wanted)


def logit(relevance: float) -> float:
    return math.log(relevance / (1 - relevance))


def test_cohere_v2(ask: Ask, native: Ranking) -> None:
    body = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS, "top_n": 2, "max_tokens_per_doc": None}
    reply = ask("/v2/rerank", body)

    assert reply.status_code == 200
    assert matches(
        reply.json(),
        {
            "id": ANY,
            "results": [{"index": index, "relevance_score": native.relevance[index]} for index in native.order[:2]],
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": native.tokens, "output_tokens": 0},
                "cached_tokens": ANY,
            },
        },
    )


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"top_k": 2}, "top_k"),
        ({"top_n": 0}, "top_n"),
        ({"priority": 1000}, "priority"),
        ({"documents": []}, "documents"),
        ({"documents": [{"text": "a"}]}, "documents[0]"),
        ({"query": ""}, "query"),
    ],
)
def test_cohere_v2_refuses_in_its_own_form(ask: Ask, change: dict[str, Any], names: str) -> None:
    reply = ask("/v2/rerank", {"model": "m", "query": QUERY, "documents": TEXTS} | change)

    assert reply.status_code == 422
    assert reply.json().keys() == {"id", "message"}
    assert reply.json()["id"] == reply.headers["x-request-id"]
    assert names in reply.json()["message"]


def test_cohere_v2_wants_a_model_and_at_most_10_000_documents(ask: Ask) -> None:
    without, many = (
        ask("/v2/rerank", {"query": QUERY, "documents": TEXTS}),
        ask("/v2/rerank", {"model": "m", "query": QUERY, "documents": ["a"] * 10_001}),
    )

    assert without.status_code == many.status_code == 422
    assert "model" in without.json()["message"]
    assert "10000" in many.json()["message"]


def test_cohere_v2_repeats_documents_only_when_asked(ask: Ask) -> None:
    reply = ask("/v2/rerank", {"model": "m", "query": QUERY, "documents": TEXTS, "return_documents": True})

    assert all(each["document"] == {"text": TEXTS[each["index"]]} for each in reply.json()["results"])


def test_cohere_v2_cuts_documents_at_4096_tokens_unless_told() -> None:
    engine = FakeEngine(max_row_tokens=20_000)
    with service(engine) as client:
        for told in ({}, {"max_tokens_per_doc": None}, {"max_tokens_per_doc": 50}):
            client.post("/v2/rerank", json={"model": "m", "query": "q", "documents": ["alpha " * 9000]} | told)

    by_default, null, shorter = (len(task.rows[0].tokens) for task in engine.tasks)
    assert 4096 < by_default == null < 4300
    assert shorter < 250


def test_cohere_v2_warns_of_documents_without_a_score() -> None:
    engine = FakeEngine()
    engine.poison = {1: math.nan}
    reply = post("/v2/rerank", {"model": "m", "query": QUERY, "documents": TEXTS}, engine).json()

    assert sorted(each["index"] for each in reply["results"]) == [0, 2]
    assert [warning.split(":")[0] for warning in reply["meta"]["warnings"]] == ["documents[1]"]


def test_cohere_v1_reads_its_fields_from_v1_rerank(ask: Ask, native: Ranking) -> None:
    body = {"model": "m", "query": QUERY, "documents": PASSAGES, "return_documents": True, "max_chunks_per_doc": 3}
    reply = ask("/v1/rerank", body).json()

    assert reply["meta"]["api_version"] == {"version": "1"}
    assert reply["meta"]["billed_units"] == {"search_units": 1}
    assert [each["document"]["text"] for each in reply["results"]] == [TEXTS[index] for index in native.order]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_jina_and_vllm(ask: Ask, native: Ranking, path: str) -> None:
    reply = ask(path, {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 1, "return_documents": True})

    assert matches(
        reply.json(),
        {
            "id": ANY,
            "object": "list",
            "model": "fake",
            "results": [
                {
                    "index": native.best,
                    "relevance_score": native.relevance[native.best],
                    "document": {"text": TEXTS[native.best]},
                }
            ],
            "usage": ANY,
            "meta": ANY,
        },
    )
    assert reply.json()["usage"]["total_tokens"] == native.tokens


@pytest.mark.parametrize("extra", [{}, {"raw_scores": False}, {"truncate": None, "truncation_direction": "Right"}])
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/", "/invocations"])
def test_tei(ask: Ask, native: Ranking, path: str, extra: dict[str, Any]) -> None:
    reply = ask(path, {"query": QUERY, "texts": TEXTS} | extra)

    assert matches(reply.json(), [{"index": index, "score": native.relevance[index]} for index in native.order])


def test_tei_with_text_raw_scores_and_top_n(ask: Ask, native: Ranking) -> None:
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": True, "return_text": True, "top_n": 1}
    reply = ask("/rerank", body)

    best = native.best
    assert matches(reply.json(), [{"index": best, "score": logit(native.relevance[best]), "text": TEXTS[best]}])


def test_tei_says_in_headers_what_it_took(ask: Ask, native: Ranking) -> None:
    headers = ask("/rerank", {"query": QUERY, "texts": TEXTS}).headers

    assert headers["x-compute-characters"] == str(len(QUERY) + sum(map(len, TEXTS)))
    assert headers["x-compute-tokens"] == str(native.tokens)
    assert headers["x-inference-time"] == "13"  # the fake engine says 10 ms and 3 ms
    assert headers["x-queue-time"] == "2"
    assert {"x-compute-time", "x-total-time", "x-tokenization-time"} <= headers.keys()


@pytest.mark.parametrize(
    "body",
    [
        {"query": "", "texts": TEXTS},
        {"query": QUERY, "texts": [*TEXTS, 5]},
        {"query": QUERY, "texts": [LONG], "truncate": False},
        {"query": QUERY, "texts": [LONG], "truncate": False, "truncation_direction": "left"},
        {"query": QUERY, "texts": TEXTS, "truncation_direction": "up"},
    ],
)
def test_tei_refuses_in_its_own_form(body: dict[str, Any]) -> None:
    reply = post("/rerank", body, FakeEngine(max_row_tokens=300))

    assert reply.status_code == 422
    assert reply.json() == {"error": reply.json()["error"], "error_type": "Validation"}


def test_tei_answers_all_texts_or_none() -> None:
    late, poisoned = FakeEngine(), FakeEngine()
    late.late, poisoned.poison = {1}, {1: math.nan}

    for engine in (late, poisoned):
        reply = post("/rerank", {"query": QUERY, "texts": TEXTS}, engine)
        assert reply.status_code == 424
        assert reply.json()["error_type"] == "Backend"


def test_tei_says_that_nothing_was_sent(ask: Ask) -> None:
    reply = ask("/rerank", {"query": QUERY, "texts": []})

    assert (reply.status_code, reply.json()["error_type"]) == (400, "Empty")


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/voyage/v1/rerank"])
@pytest.mark.parametrize(("top_k", "num_results"), [(None, 3), (1, 1), (1000, 3)])
def test_voyage(ask: Ask, native: Ranking, path: str, top_k: int | None, num_results: int) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-2.5", "top_k": top_k, "truncation": True}
    reply = ask(path, body | {"return_documents": True})

    assert matches(
        reply.json(),
        {
            "object": "list",
            "data": [
                {"index": index, "relevance_score": native.relevance[index], "document": TEXTS[index]}
                for index in native.order[:num_results]
            ],
            "model": "fake",
            "usage": {"total_tokens": native.tokens},
        },
    )


@pytest.mark.parametrize("top_k", [0, -1, True, 2.0, "2", 2**64])
def test_b014_voyage_refuses_a_top_k_outside_its_bounds_in_its_own_form(ask: Ask, top_k: object) -> None:
    reply = ask("/v1/rerank", {"query": QUERY, "documents": TEXTS, "model": "m", "top_k": top_k})

    assert reply.status_code == 400
    assert reply.json().keys() == {"detail"}
    assert "top_k" in reply.json()["detail"]


def test_voyage_refuses_what_it_must_not_cut() -> None:
    body = {"query": QUERY, "documents": [*TEXTS, LONG], "model": "m", "top_k": None, "truncation": False}
    reply = post("/v1/rerank", body, FakeEngine(max_row_tokens=300))

    assert reply.status_code == 400


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/infinity/rerank"])
def test_infinity(ask: Ask, native: Ranking, path: str) -> None:
    body = {"query": f" {QUERY}\n", "documents": TEXTS, "raw_scores": False, "return_documents": True, "top_n": 1}
    reply = ask(path, body)

    assert matches(
        reply.json(),
        {
            "object": "rerank",
            "results": [
                {
                    "relevance_score": native.relevance[native.best],
                    "index": native.best,
                    "document": TEXTS[native.best],
                }
            ],
            "model": "fake",
            "usage": {"prompt_tokens": native.tokens, "total_tokens": native.tokens},
            "id": f"infinity-{reply.headers['x-request-id']}",
            "created": ANY,
        },
    )


def test_infinity_raw_scores_are_log_odds(ask: Ask, native: Ranking) -> None:
    reply = ask("/rerank", {"query": QUERY, "documents": TEXTS, "raw_scores": True}).json()

    assert [each["index"] for each in reply["results"]] == native.order
    for each in reply["results"]:
        assert each["relevance_score"] == pytest.approx(logit(native.relevance[each["index"]]), rel=1e-5)


def test_infinity_refuses_in_its_own_form(ask: Ask) -> None:
    reply = ask("/rerank", {"query": "q" * 122_881, "documents": TEXTS, "raw_scores": False})

    assert reply.status_code == 422
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/ranking", "/v1/retrieval/model/reranking", "/v1/retrieval/nvidia/m/reranking"])
def test_nvidia(ask: Ask, native: Ranking, path: str) -> None:
    body = {"model": "nvidia/m", "query": {"text": QUERY}, "passages": PASSAGES, "truncate": "END", "top_k": 2}
    reply = ask(path, body)

    assert matches(
        reply.json(),
        {
            "rankings": [{"index": index, "logit": logit(native.relevance[index])} for index in native.order[:2]],
            "usage": {"prompt_tokens": native.tokens, "total_tokens": native.tokens},
        },
    )


def test_nvidia_cuts_passages_only_when_asked() -> None:
    body = {"query": {"text": QUERY}, "passages": [{"text": LONG}]}
    statuses = {
        truncate: post("/v1/ranking", body | told, FakeEngine(max_row_tokens=300)).status_code
        for truncate, told in {"": {}, "NONE": {"truncate": "NONE"}, "END": {"truncate": "END"}}.items()
    }

    assert statuses == {"": 422, "NONE": 422, "END": 200}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/rerank", {"query": QUERY, "documents": TEXTS}, "errors"),
        ("/v1/rerank", {"query": QUERY, "documents": TEXTS, "model": "m", "top_k": None}, "errors"),
        ("/v1/rerank", {"query": QUERY, "documents": TEXTS, "raw_scores": False}, "errors"),
        ("/v1/ranking", {"query": {"text": QUERY}, "passages": PASSAGES, "truncate": "END"}, "errors"),
    ],
)
def test_objects_name_the_documents_that_have_no_score(path: str, body: dict[str, Any], key: str) -> None:
    engine = FakeEngine()
    engine.late = {2}
    reply = post(path, body, engine)

    assert reply.status_code == 200
    assert [(each["index"], each["error"]["code"]) for each in reply.json()[key]] == [(2, "deadline_exceeded")]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"])
@pytest.mark.parametrize("body", [{}, {"query": QUERY}, {"documents": TEXTS}, {"text_1": "a", "text_2": "b"}])
def test_a_body_of_no_dialect_is_told_which_keys_would_do(ask: Ask, path: str, body: dict[str, Any]) -> None:
    reply = ask(path, body)

    assert reply.status_code == 422
    assert reply.json()["error"]["message"] == "the body must have `documents` and `query`, or `query` and `texts`"
