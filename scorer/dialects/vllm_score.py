"""vLLM's score: pairs of texts, one score each, in the order of the request."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import vllm_error
from scorer.dialects.rerank_parts import log_odds
from scorer.dialects.schema import ScoreRequest
from scorer.dialects.score_parts import ScoreUsage, all_scores, score_usage
from scorer.dialects.vllm_options import ScoreInputs, VllmOptions, pairs_request, texts_of
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch


class VllmQueriesDocuments(VllmOptions, frozen=True, kw_only=True):
    """Queries and documents: one and one, one and many, or equally many."""

    queries: ScoreInputs
    documents: ScoreInputs


class VllmQueriesItems(VllmOptions, frozen=True, kw_only=True):
    """As `queries` and `documents`."""

    queries: ScoreInputs
    items: ScoreInputs


class VllmData(VllmOptions, frozen=True, kw_only=True):
    """As `queries` and `documents`."""

    data_1: ScoreInputs
    data_2: ScoreInputs


class VllmTexts(VllmOptions, frozen=True, kw_only=True):
    """As `queries` and `documents`."""

    text_1: ScoreInputs
    text_2: ScoreInputs


SPELLINGS: Final[tuple[tuple[type[VllmOptions], str, str], ...]] = (
    (VllmQueriesDocuments, "queries", "documents"),
    (VllmQueriesItems, "queries", "items"),
    (VllmData, "data_1", "data_2"),
    (VllmTexts, "text_1", "text_2"),
)
"""Each spelling with its names of queries and documents."""


class VllmScore(Struct, frozen=True):
    index: int
    object: Literal["score"]
    score: Annotated[float, Meta(description="The relevance, from 0 to 1, unless `use_activation` is `false`.")]


class VllmScoreResponse(Struct, frozen=True):
    """Scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    model: str
    data: list[VllmScore]
    usage: ScoreUsage


def vllm_score_dialects() -> list[tuple[frozenset[str], Dialect[Any]]]:
    """One for each spelling, with the keys that tell it."""
    return [
        (frozenset({queries, documents}), _dialect(kind, queries, documents)) for kind, queries, documents in SPELLINGS
    ]


def _dialect(kind: type[VllmOptions], queries: str, documents: str) -> Dialect[VllmOptions]:
    def to_request(spoken: VllmOptions) -> ScoreRequest:
        first, second = texts_of(getattr(spoken, queries)), texts_of(getattr(spoken, documents))
        return pairs_request(spoken, first, second, names=(queries, documents))

    def reply(spoken: VllmOptions, batch: ScoredBatch) -> VllmScoreResponse:
        relevances = [score.relevance for score in all_scores(batch, queries=queries, documents=documents)]
        shown = map(log_odds, relevances) if spoken.use_activation is False else relevances
        return score_list(shown, batch, reply_id=f"score-{spoken.request_id or batch.request_id}")

    return Dialect(
        decode=StrictDecoder(kind).decode,
        to_request=to_request,
        reply=reply,
        error_form=vllm_error,
        partial=False,
        salt=lambda spoken: spoken.cache_salt,
    )


def score_list(scores: Iterable[float], batch: ScoredBatch, *, reply_id: str) -> VllmScoreResponse:
    """The answer of every score route of vLLM."""
    return VllmScoreResponse(
        id=reply_id,
        object="list",
        created=int(time.time()),
        model=batch.model,
        data=[VllmScore(index=index, object="score", score=score) for index, score in enumerate(scores)],
        usage=score_usage(batch),
    )
