"""The rerank dialect of Jina and Cohere: what ``POST /v1/rerank`` answers."""

from __future__ import annotations

from msgspec import UNSET

from engine import DeadlineExceeded
from scorer.batch import ItemFault, ScoredBatch, ScoredItem
from scorer.errors import InvalidValue, NoFiniteScore
from scorer.json_body import StrictDecoder
from scorer.native_dialect import batch_usage, item_error
from scorer.schema import ScoreRequest
from scorer.schema_rerank import (
    ApiVersion,
    MetaTokens,
    RerankedDocument,
    RerankError,
    RerankMeta,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankText,
)
from scorer.service import Dialect


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
    return ScoreRequest(
        queries=[_text_of(request.query)],
        documents=[_text_of(document) for document in request.documents],
        instruction=request.instruction,
        truncate="error" if request.truncation is False else "document",
        max_tokens_per_doc=request.max_tokens_per_doc,
    )


def _reply(request: RerankRequest, batch: ScoredBatch) -> RerankResponse:
    faults = [(item, item.result) for item in batch.items if isinstance(item.result, ItemFault)]
    _refuse_hopeless(request, batch, [fault for _, fault in faults])
    ranked = sorted((item for item in batch.items if item.score), key=_by_relevance)
    usage = batch.usage
    return RerankResponse(
        id=batch.request_id,
        object="list",
        model=batch.model,
        results=[_result(item, request) for item in ranked[: request.top_n or request.top_k]],
        usage=batch_usage(batch),
        meta=RerankMeta(
            api_version=ApiVersion(version="1"),
            tokens=MetaTokens(input_tokens=usage.prompt_tokens, output_tokens=0),
            cached_tokens=usage.cached_tokens,
        ),
        errors=[RerankError(index=item.index, error=item_error(fault)) for item, fault in faults] or UNSET,
    )


def _refuse_hopeless(request: RerankRequest, batch: ScoredBatch, faults: list[ItemFault]) -> None:
    """Refuse the request where the caller has to change it, or where nothing was scored.

    Raises:
        InvalidValue: the query, or a document that must not be cut, is too long or empty.
        NoFiniteScore: the model gave no number for any document.
        DeadlineExceeded: the deadline passed before any document was scored.
    """
    nothing = len(faults) == len(batch.items)
    for fault in faults:
        if fault.outcome == "invalid" and (nothing or request.truncation is False):
            field = "query" if fault.field == "queries[0]" else fault.field
            raise InvalidValue(fault.message, field=field, value=fault.value, limit=fault.limit)
    if nothing and any(fault.outcome == "deadline" for fault in faults):
        raise DeadlineExceeded("the deadline passed before a document was scored")
    if nothing:
        raise NoFiniteScore("the model gave NaN or infinity for every document")


def _by_relevance(item: ScoredItem) -> float:
    assert item.score is not None, "only documents with a score are ranked"
    return -item.score.relevance  # sorting is stable: ties stay in order of their index


def _result(item: ScoredItem, request: RerankRequest) -> RerankResult:
    assert item.score is not None, "only documents with a score are ranked"
    text = _text_of(request.documents[item.index])
    return RerankResult(
        index=item.index,
        relevance_score=item.score.relevance,
        document=RerankedDocument(text=text) if request.return_documents else UNSET,
        truncated_tokens=item.truncated_tokens or UNSET,
    )


def _text_of(text: str | RerankText) -> str:
    return text if isinstance(text, str) else text.text
