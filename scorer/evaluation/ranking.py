"""Measuring how well a model ranks the candidates of a ranking set."""

from __future__ import annotations

import time
from collections.abc import Sequence

from scorer.evaluation.bm25 import bm25_scores
from scorer.evaluation.progress import counting
from scorer.evaluation.ranking_eval import evaluate
from scorer.evaluation.ranking_report import EvalReport
from scorer.evaluation.ranking_run import first_candidates, score_candidates
from scorer.evaluation.ranking_sets import RankingSet
from scorer.model_host import LoadedModel
from scorer.offline.scoring import score_now


def evaluate_ranking(
    ranking_set: RankingSet,
    model: LoadedModel,
    *,
    max_document_tokens: int,
    depth: int,
    weights: Sequence[float],
    num_queries: int | None,
) -> EvalReport:
    """The model's ranking beside the first stage's and mixes of both.

    Args:
        depth: Candidates per query, at most.
        weights: Shares of the model's score in mixes to report on all queries.
        num_queries: The first so many; None: all.
    """
    queries = first_candidates(ranking_set.queries[:num_queries], depth)
    num_pairs = sum(len(query.candidates) for query in queries)
    with counting(num_pairs, ranking_set.name, "pair") as (tally, count):
        started = time.monotonic()
        scores = score_candidates(
            queries,
            ranking_set.documents,
            lambda request: score_now(request, model),
            max_document_tokens=max_document_tokens,
            on_batch=count,
        )
        seconds = time.monotonic() - started
    lexical = bm25_scores(ranking_set)
    info = model.engine.info
    return EvalReport(
        ranking_set=ranking_set.name,
        model=model.name,
        revision=info.revision,
        template=model.prompts.default.template.id,
        dtype=info.dtype,
        kernels=info.kernels,
        num_documents=len(ranking_set.documents),
        depth=depth,
        max_document_tokens=max_document_tokens,
        tally=tally,
        seconds=seconds,
        evaluation=evaluate(
            queries,
            model=scores,
            lexical={query.id: lexical[query.id][:depth] for query in queries},
            weights=weights,
        ),
    )
