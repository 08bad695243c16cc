"""Scoring the candidates of ranking sets as a search pipeline would: one request per query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine import RowUsage, sum_usage
from scorer.dialects.schema import ScoreRequest, TextItem
from scorer.evaluation.ranking_eval import Scores
from scorer.evaluation.ranking_sets import RankingQuery
from scorer.evaluation.token_shares import usage_of
from scorer.scoring.batch import ScoredBatch


@dataclass(slots=True)
class Tally:
    """What batches cost and what became of their pairs, added up.

    Args:
        num_cut: Pairs whose document was cut.
        num_unscored: Pairs without a score.
    """

    usage: RowUsage = field(default_factory=lambda: RowUsage(prompt_tokens=0))
    num_pairs: int = 0
    num_cut: int = 0
    num_unscored: int = 0

    def add(self, batch: ScoredBatch) -> None:
        self.usage = sum_usage([self.usage, usage_of(batch)])
        self.num_pairs += len(batch.items)
        self.num_cut += sum(item.truncated_tokens > 0 for item in batch.items)
        self.num_unscored += sum(item.score is None for item in batch.items)


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
