"""Infinity's rerank: ``raw_scores``, documents as plain strings, an object called ``rerank``."""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import VllmErrorBody, WireError, vllm_error
from scorer.dialects.rerank_parts import ranked_items, raw_score_of, relevance_of, rerank_errors, rerank_request
from scorer.dialects.rerank_schema import RerankError
from scorer.dialects.schema import PositiveInt
from scorer.errors import Failure
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch

MAX_CHARACTERS: Final = 122_880


class InfinityRerankRequest(Struct, frozen=True):
    """One query and its documents; unknown fields are ignored, white space around texts is cut off."""

    query: Annotated[str, Meta(max_length=MAX_CHARACTERS)]
    documents: Annotated[list[Annotated[str, Meta(max_length=MAX_CHARACTERS)]], Meta(min_length=1)]
    raw_scores: Annotated[bool | None, Meta(description="Log-odds of the relevance instead of the relevance.")] = False
    return_documents: Annotated[bool | None, Meta(description="Repeat the text in each result.")] = False
    model: Annotated[str, Meta(description="Any name: there is one model.")] = "default/not-specified"
    top_n: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None


class InfinityResult(Struct, frozen=True):
    relevance_score: float
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    document: str | UnsetType = UNSET


class InfinityUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class InfinityRerankResponse(Struct, frozen=True):
    """Best first, ties by index. `errors` is there only if a document has no score."""

    object: Literal["rerank"]
    results: list[InfinityResult]
    model: str
    usage: InfinityUsage
    id: str
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    errors: list[RerankError] | UnsetType = UNSET


def infinity_dialect() -> Dialect[InfinityRerankRequest]:
    return Dialect(
        decode=StrictDecoder(InfinityRerankRequest).decode,
        to_request=lambda request: rerank_request(
            request.query.strip(), [document.strip() for document in request.documents]
        ),
        reply=_reply,
        error_form=infinity_error,
    )


def infinity_error(failure: Failure) -> WireError:
    """The body of vLLM under the native status, which ``code`` repeats."""
    body = vllm_error(failure).body
    assert isinstance(body, VllmErrorBody), "that is its form"
    return WireError(failure.status, VllmErrorBody(error=replace(body.error, code=failure.status)))


def _reply(request: InfinityRerankRequest, batch: ScoredBatch) -> InfinityRerankResponse:
    score_of = raw_score_of if request.raw_scores else relevance_of
    tokens = batch.usage.prompt_tokens
    return InfinityRerankResponse(
        object="rerank",
        results=[
            InfinityResult(
                relevance_score=score_of(item),
                index=item.index,
                document=request.documents[item.index] if request.return_documents else UNSET,
            )
            for item in ranked_items(batch, request.top_n)
        ],
        model=batch.model,
        usage=InfinityUsage(prompt_tokens=tokens, total_tokens=tokens),
        id=f"infinity-{batch.request_id}",
        created=int(time.time()),
        errors=rerank_errors(batch) or UNSET,
    )
