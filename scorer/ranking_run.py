"""Scoring the candidates of ranking sets as a search pipeline would: one request per query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from scorer.batch import ScoredBatch
from scorer.ranking_eval import Scores
from scorer.ranking_sets import RankingQuery
from scorer.schema import ScoreRequest, TextItem


def first_candidates(queries: Sequence[RankingQuery], depth: int) -> list[RankingQuery]:
    """The queries with at most ``depth`` candidates each."""
    return [replace(query, candidates=query.candidates[:depth]) for query in queries]


def score_candidates(
    queries: Sequence[RankingQuery],
    documents: Mapping[str, str],
    score: Callable[[ScoreRequest], ScoredBatch],
    *,
    max_document_tokens: int,
    on_batch: Callable[[ScoredBatch], None],
) -> dict[str, Scores]:
    """The model's score of every candidate, by query id and in the order of the candidates.

    The document comes first where the template can do that, so that a document that is a
    candidate of several queries is computed once while it stays in the cache. A candidate
    without a score has ``-inf``.

    Args:
        on_batch: Told of every answer.
    """
    found: dict[str, Scores] = {}
    for query in queries:
        request = ScoreRequest(
            queries=[query.text],
            documents=[TextItem(id=document, text=documents[document]) for document in query.candidates],
            max_tokens_per_doc=max_document_tokens,
        )
        batch = score(request)
        found[query.id] = np.array([item.score.score if item.score else -np.inf for item in batch.items])
        on_batch(batch)
    return found
