"""SGLang's rerank: a bare array with the documents in it, all of them or none."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import sglang_error
from scorer.dialects.rerank_parts import ranked_items, relevance_of, rerank_request
from scorer.dialects.schema import PositiveInt, ScoreRequest
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch, ScoredItem


class SglangRerankRequest(Struct, frozen=True):
    """One query and its documents, none of them blank; unknown fields are ignored."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1)]
    instruct: Annotated[str | None, Meta(description="Replaces the template's instruction.")] = None
    top_n: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None
    return_documents: Annotated[bool | None, Meta(description="Repeat the text in each result (also null).")] = True


class SglangMetaInfo(Struct, frozen=True):
    """What one document took; `id` is the request's."""

    id: str
    prompt_tokens: int
    cached_tokens: Annotated[int, Meta(description="In the cache before this request.")]
    truncated_tokens: Annotated[int, Meta(description="Cut from the document.")]


class SglangRank(Struct, frozen=True):
    """One document. The answer is an array of these, best first, ties by index."""

    score: Annotated[float, Meta(description="The relevance, from 0 to 1.")]
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    meta_info: SglangMetaInfo
    document: str | UnsetType = UNSET


def sglang_rerank_dialect() -> Dialect[SglangRerankRequest]:
    return Dialect(
        decode=StrictDecoder(SglangRerankRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=sglang_error,
        partial=False,
    )


def _to_request(spoken: SglangRerankRequest) -> ScoreRequest:
    for field, text in (
        ("query", spoken.query),
        *((f"documents[{i}]", each) for i, each in enumerate(spoken.documents)),
    ):
        if not text.strip():
            raise InvalidValue(f"`{field}` is blank", field=field, value=len(text))
    return rerank_request(spoken.query, spoken.documents, instruction=spoken.instruct)


def _reply(spoken: SglangRerankRequest, batch: ScoredBatch) -> list[SglangRank]:
    return [_rank(item, spoken, batch) for item in ranked_items(batch, spoken.top_n, partial=False)]


def _rank(item: ScoredItem, spoken: SglangRerankRequest, batch: ScoredBatch) -> SglangRank:
    assert item.usage is not None, "a document with a score was run"
    return SglangRank(
        score=relevance_of(item),
        index=item.index,
        meta_info=SglangMetaInfo(
            id=batch.request_id,
            prompt_tokens=item.usage.prompt_tokens,
            cached_tokens=item.usage.cached_tokens,
            truncated_tokens=item.truncated_tokens,
        ),
        document=UNSET if spoken.return_documents is False else spoken.documents[item.index],
    )
