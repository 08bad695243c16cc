"""NVIDIA's ranking: passages in, logits out."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.rerank_parts import ranked_items, raw_score_of, rerank_errors, rerank_request
from scorer.dialects.rerank_schema import RerankError, RerankText
from scorer.dialects.schema import PositiveInt
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch


class NvidiaRankingRequest(Struct, frozen=True):
    """One query and its passages; unknown fields are ignored."""

    query: RerankText
    passages: Annotated[list[RerankText], Meta(min_length=1)]
    model: Annotated[str | None, Meta(description="Any name: there is one model.")] = None
    truncate: Annotated[
        Literal["NONE", "END"] | None, Meta(description="`NONE`: a passage that does not fit is an error.")
    ] = "NONE"
    top_k: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None


class NvidiaRank(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the passage in the request.")]
    logit: Annotated[float, Meta(description="Log-odds of the relevance.")]


class NvidiaUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class NvidiaRankingResponse(Struct, frozen=True):
    """Best first, ties by index. `errors` is there only if a passage has no score."""

    rankings: list[NvidiaRank]
    usage: NvidiaUsage
    errors: list[RerankError] | UnsetType = UNSET


def nvidia_dialect() -> Dialect[NvidiaRankingRequest]:
    return Dialect(
        decode=StrictDecoder(NvidiaRankingRequest).decode,
        to_request=lambda request: rerank_request(request.query, request.passages, truncate=request.truncate == "END"),
        reply=_reply,
    )


def _reply(request: NvidiaRankingRequest, batch: ScoredBatch) -> NvidiaRankingResponse:
    ranked = ranked_items(batch, request.top_k, partial=request.truncate == "END", documents="passages")
    tokens = batch.usage.prompt_tokens
    return NvidiaRankingResponse(
        rankings=[NvidiaRank(index=item.index, logit=raw_score_of(item)) for item in ranked],
        usage=NvidiaUsage(prompt_tokens=tokens, total_tokens=tokens),
        errors=rerank_errors(batch) or UNSET,
    )
