"""How good rankings are: two measures, mixing of two scores, and a fair choice of the mix.

Scores of a query are an array in the order of its candidates; ``-inf`` means that a candidate
has none, and ranks it last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import ir_measures
import numpy as np
import numpy.typing as npt

from scorer.evaluation.ranking_sets import RankingQuery

CUTOFF: Final = 10
WEIGHTS: Final = tuple(step / 10 for step in range(1, 10))
"""Shares of the model's score that are tried when a mix is chosen."""

_NDCG: Final = ir_measures.nDCG @ CUTOFF
_MRR: Final = ir_measures.RR @ CUTOFF
_RESAMPLES: Final = 10_000
_SEED: Final = 20_240_229

Scores: TypeAlias = npt.NDArray[np.float64]
QueryScores: TypeAlias = Mapping[str, Scores]
"""Scores by query id."""
Rankings: TypeAlias = Mapping[str, Sequence[str]]
"""Document ids by query id, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a ranking changes in nDCG@10, compared query by query.

    ``low`` and ``high`` bound the mean with 95 % confidence (paired bootstrap over the queries,
    Efron 1979; the resamples are the same in every run).
    """

    mean: float
    low: float
    high: float
    num_better: int
    num_worse: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingRow:
    """One ranking, judged on some queries. ``against_first_stage`` is None for the first stage itself."""

    name: str
    ndcg_at_10: float
    mrr_at_10: float
    against_first_stage: Difference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingTable:
    """Rankings of the same queries.

    ``perfect``: what the best order of these candidates would reach, which no reranker can pass.
    """

    num_queries: int
    rows: tuple[RankingRow, ...]
    perfect_ndcg_at_10: float
    perfect_mrr_at_10: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How the model ranks.

    Args:
        every: On every query: nothing in it was chosen by looking at the judgements.
        chosen_weight: Share of the model's score that ranked best on the 1st, 3rd, 5th ... query.
        held_out: On the 2nd, 4th, 6th ... query, with that share. Both are None if there are
            fewer than two queries.
    """

    every: RankingTable
    chosen_weight: float | None
    held_out: RankingTable | None


def evaluate(
    queries: Sequence[RankingQuery], *, model: QueryScores, lexical: QueryScores, weights: Sequence[float] = ()
) -> Evaluation:
    """Judge the first stage, the model alone and mixes of the model's score with the lexical one.

    Args:
        lexical: Scores of the first stage, used for mixing; its order is taken from the candidates.
        weights: Shares of the model's score that were fixed beforehand.
    """
    fixed = {f"mixed, {weight:g} model": weight for weight in weights}
    every = _table(queries, _rankings(queries, model, lexical, fixed))
    choosing, held_out = queries[::2], queries[1::2]
    if not held_out:
        return Evaluation(every=every, chosen_weight=None, held_out=None)
    weight = choose_weight(choosing, model=model, lexical=lexical)
    mixes = {f"mixed, {weight:g} model": weight}
    table = _table(held_out, _rankings(held_out, model, lexical, mixes))
    return Evaluation(every=every, chosen_weight=weight, held_out=table)


def choose_weight(queries: Sequence[RankingQuery], *, model: QueryScores, lexical: QueryScores) -> float:
    """The share out of ``WEIGHTS`` with the best mean nDCG@10; of equals the one nearest to one half."""

    def quality(weight: float) -> tuple[float, float]:
        ndcg, _ = _judge(queries, _mixed(queries, model, lexical, weight))
        return round(float(ndcg.mean()), 9), -abs(weight - 0.5)

    return max(WEIGHTS, key=quality)


def mix(model: Scores, lexical: Scores, weight: float) -> Scores:
    """``weight`` of the model's score and the rest of the lexical one, each as z-scores of this query."""
    return weight * z_scores(model) + (1 - weight) * z_scores(lexical)


def z_scores(scores: Scores) -> Scores:
    """``(score - mean) / standard deviation``; zeros if all are equal. What has no score keeps ``-inf``."""
    known = np.isfinite(scores)
    result = np.where(known, 0.0, -np.inf)
    if known.any():
        values = scores[known]
        spread = values.std()
        if spread > 1e-12 * max(1.0, float(np.abs(values).max())):
            result[known] = (values - values.mean()) / spread
    return result


def rank(candidates: Sequence[str], scores: Scores) -> list[str]:
    """Candidates by falling score; equals stay in the order they have."""
    return [candidates[index] for index in np.argsort(-scores, kind="stable")]


def _rankings(
    queries: Sequence[RankingQuery], model: QueryScores, lexical: QueryScores, mixes: Mapping[str, float]
) -> dict[str, Rankings]:
    alone = {query.id: rank(query.candidates, model[query.id]) for query in queries}
    mixed = {name: _mixed(queries, model, lexical, weight) for name, weight in mixes.items()}
    return {"model alone": alone, **mixed}


def _mixed(
    queries: Sequence[RankingQuery], model: QueryScores, lexical: QueryScores, weight: float
) -> dict[str, list[str]]:
    return {query.id: rank(query.candidates, mix(model[query.id], lexical[query.id], weight)) for query in queries}


def _table(queries: Sequence[RankingQuery], rankings: Mapping[str, Rankings]) -> RankingTable:
    first_ndcg, first_mrr = _judge(queries, {query.id: query.candidates for query in queries})
    rows = [_row("BM25", first_ndcg, first_mrr, None)]
    for name, ranking in rankings.items():
        ndcg, mrr = _judge(queries, ranking)
        rows.append(_row(name, ndcg, mrr, compare(ndcg, first_ndcg)))
    perfect_ndcg, perfect_mrr = _judge(queries, {query.id: _perfect(query) for query in queries})
    return RankingTable(
        num_queries=len(queries),
        rows=tuple(rows),
        perfect_ndcg_at_10=float(perfect_ndcg.mean()),
        perfect_mrr_at_10=float(perfect_mrr.mean()),
    )


def _row(name: str, ndcg: Scores, mrr: Scores, difference: Difference | None) -> RankingRow:
    return RankingRow(
        name=name, ndcg_at_10=float(ndcg.mean()), mrr_at_10=float(mrr.mean()), against_first_stage=difference
    )


def _perfect(query: RankingQuery) -> list[str]:
    return sorted(query.candidates, key=lambda document: -query.grades.get(document, 0))


def _judge(queries: Sequence[RankingQuery], rankings: Rankings) -> tuple[Scores, Scores]:
    """nDCG@10 and MRR@10 of each query, in the order of ``queries``."""
    judgements = [
        ir_measures.Qrel(query.id, document, grade) for query in queries for document, grade in query.grades.items()
    ]
    # falling scores, so that no tie is left for the library to break
    run = [
        ir_measures.ScoredDoc(query.id, document, float(-place))
        for query in queries
        for place, document in enumerate(rankings[query.id])
    ]
    values: dict[tuple[str, object], float] = {
        (metric.query_id, metric.measure): metric.value
        for metric in ir_measures.iter_calc([_NDCG, _MRR], judgements, run)
    }

    def column(measure: object) -> Scores:
        return np.array([values[query.id, measure] for query in queries])

    return column(_NDCG), column(_MRR)


def compare(values: Scores, baseline: Scores) -> Difference:
    """How ``values`` differ from ``baseline``, query by query."""
    gains = values - baseline
    draws = np.random.default_rng(_SEED).integers(0, len(gains), size=(_RESAMPLES, len(gains)))
    low, high = np.quantile(gains[draws].mean(axis=1), [0.025, 0.975])
    return Difference(
        mean=float(gains.mean()),
        low=float(low),
        high=float(high),
        num_better=int((gains > 1e-9).sum()),
        num_worse=int((gains < -1e-9).sum()),
    )
