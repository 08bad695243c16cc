"""The lenient rerank dialect: Jina's and vLLM's form, with what clients of Cohere's version 1 read."""

from __future__ import annotations

from msgspec import UNSET

from scorer.dialects.cohere_rerank import cohere_meta
from scorer.dialects.dialect import Dialect
from scorer.dialects.native import batch_usage
from scorer.dialects.rerank_parts import ranked_items, relevance_of, rerank_errors, rerank_request, text_of
from scorer.dialects.rerank_schema import RerankedDocument, RerankRequest, RerankResponse, RerankResult
from scorer.dialects.schema import ScoreRequest
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch, ScoredItem


def rerank_dialect() -> Dialect[RerankRequest]:
    return Dialect(decode=StrictDecoder(RerankRequest).decode, to_request=_to_request, reply=_reply)


def _to_request(request: RerankRequest) -> ScoreRequest:
    if None not in (request.top_n, request.top_k) and request.top_n != request.top_k:
        raise InvalidValue(
            f"top_n is {request.top_n} and top_k is {request.top_k}; they mean the same, give one of them",
            field="top_k",
            value=request.top_k,
            limit=request.top_n,
        )
    return rerank_request(
        request.query,
        request.documents,
        truncate=request.truncation is not False,
        max_tokens_per_doc=request.max_tokens_per_doc or None,
        max_tokens_per_query=request.max_tokens_per_query or None,
        instruction=request.instruction,
        deadline_ms=request.deadline_ms,
        request_id=request.request_id,
    )


def _reply(request: RerankRequest, batch: ScoredBatch) -> RerankResponse:
    ranked = ranked_items(batch, request.top_n or request.top_k, partial=request.truncation is not False)
    return RerankResponse(
        id=batch.request_id,
        object="list",
        model=batch.model,
        results=[_result(item, request) for item in ranked],
        usage=batch_usage(batch),
        meta=cohere_meta(batch, version="1"),
        errors=rerank_errors(batch) or UNSET,
    )


def _result(item: ScoredItem, request: RerankRequest) -> RerankResult:
    text = text_of(request.documents[item.index])
    return RerankResult(
        index=item.index,
        relevance_score=relevance_of(item),
        document=RerankedDocument(text=text) if request.return_documents else UNSET,
        truncated_tokens=item.truncated_tokens or UNSET,
    )
