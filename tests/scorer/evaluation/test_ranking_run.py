from __future__ import annotations

import math

import numpy as np

from engine import RowUsage
from scorer.dialects.schema import ScoreRequest
from scorer.evaluation.ranking_run import Tally, first_candidates, score_candidates
from scorer.evaluation.ranking_sets import RankingQuery
from scorer.offline.scoring import score_now
from scorer.scoring.batch import ScoredBatch
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model

DOCUMENTS = {"a": "the first", "b": "the second", "c": "the third"}
QUERIES = [
    RankingQuery(id="q1", text="which one?", candidates=("b", "a"), grades={"a": 1}),
    RankingQuery(id="q2", text="and now?", candidates=("c", "b"), grades={"c": 1}),
]


def test_every_query_is_one_request_with_its_candidates_in_order() -> None:
    requests: list[ScoreRequest] = []
    batches: list[ScoredBatch] = []
    model = fake_model(FakeEngine())

    def score(request: ScoreRequest) -> ScoredBatch:
        requests.append(request)
        return score_now(request, model)

    found = score_candidates(QUERIES, DOCUMENTS, score, max_document_tokens=9, on_batch=batches.append)

    assert [request.queries for request in requests] == [["which one?"], ["and now?"]]
    texts = [[item if isinstance(item, str) else item.text for item in request.documents] for request in requests]
    assert texts == [["the second", "the first"], ["the third", "the second"]]
    assert {request.max_tokens_per_doc for request in requests} == {9}
    for batch, query in zip(batches, QUERIES, strict=True):
        assert found[query.id].tolist() == [item.score and item.score.score for item in batch.items]


def test_the_document_comes_first_so_that_other_queries_find_it_in_the_cache() -> None:
    batches: list[ScoredBatch] = []
    model = fake_model(FakeEngine())

    score_candidates(
        QUERIES, DOCUMENTS, lambda request: score_now(request, model), max_document_tokens=9, on_batch=batches.append
    )

    again = batches[1].items[1].usage  # document b, seen with the first query
    new = batches[1].items[0].usage
    assert again is not None
    assert new is not None
    assert batches[1].plan.order == "document_first"
    assert again.computed_tokens < new.computed_tokens


def test_a_candidate_without_a_score_has_minus_infinity() -> None:
    engine = FakeEngine()
    engine.poison = {1: math.nan}
    model = fake_model(engine)

    found = score_candidates(
        QUERIES[:1],
        DOCUMENTS,
        lambda request: score_now(request, model),
        max_document_tokens=9,
        on_batch=lambda _: None,
    )

    assert np.isfinite(found["q1"]).tolist() == [True, False]
    assert found["q1"][1] == -math.inf


def test_depth_takes_the_first_candidates() -> None:
    assert [query.candidates for query in first_candidates(QUERIES, 1)] == [("b",), ("c",)]
    assert first_candidates(QUERIES, 5) == QUERIES


def test_a_tally_adds_up_tokens_and_pairs() -> None:
    engine = FakeEngine()
    engine.poison = {1: math.nan}
    model, tally = fake_model(engine), Tally()
    usages: list[RowUsage] = []

    def count(batch: ScoredBatch) -> None:
        tally.add(batch)
        usages.extend(item.usage for item in batch.items if item.usage)

    score_candidates(
        QUERIES, DOCUMENTS, lambda request: score_now(request, model), max_document_tokens=2, on_batch=count
    )

    assert (tally.num_pairs, tally.num_unscored) == (4, 2)
    assert tally.num_cut == 4
    assert tally.usage.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert tally.usage.computed_tokens == sum(usage.computed_tokens for usage in usages)
