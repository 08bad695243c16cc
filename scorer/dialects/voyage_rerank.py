"""Voyage's rerank: ``top_k``, results under ``data``, documents as plain strings."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import WireError
from scorer.dialects.rerank_parts import ranked_items, relevance_of, rerank_errors, rerank_request
from scorer.dialects.rerank_schema import Relevance, RerankError
from scorer.dialects.schema import PositiveInt
from scorer.errors import Failure
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch


class VoyageRerankRequest(Struct, frozen=True):
    """One query and its documents; unknown fields are ignored."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1)]
    model: Annotated[str, Meta(description="Any name: there is one model.")]
    top_k: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None
    return_documents: Annotated[bool | None, Meta(description="Repeat the text in each result.")] = False
    truncation: Annotated[
        bool | None, Meta(description="Cut documents that do not fit. `false`: such a document is an error.")
    ] = True


class VoyageResult(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    relevance_score: Relevance
    document: str | UnsetType = UNSET


class VoyageUsage(Struct, frozen=True):
    total_tokens: int


class VoyageRerankResponse(Struct, frozen=True):
    """Best first, ties by index. `errors` is there only if a document has no score."""

    object: Literal["list"]
    data: list[VoyageResult]
    model: str
    usage: VoyageUsage
    errors: list[RerankError] | UnsetType = UNSET


class VoyageErrorBody(Struct, frozen=True):
    """Errors in the form of Voyage."""

    detail: str


def voyage_dialect() -> Dialect[VoyageRerankRequest]:
    return Dialect(
        decode=StrictDecoder(VoyageRerankRequest).decode,
        to_request=lambda request: rerank_request(
            request.query, request.documents, truncate=request.truncation is not False
        ),
        reply=_reply,
        error_form=voyage_error,
    )


def voyage_error(failure: Failure) -> WireError:
    """Its statuses are the native ones, but its client knows 400 as the one for wrong values."""
    status = 400 if failure.status == 422 else failure.status
    return WireError(status, VoyageErrorBody(detail=failure.message))


def _reply(request: VoyageRerankRequest, batch: ScoredBatch) -> VoyageRerankResponse:
    ranked = ranked_items(batch, request.top_k, partial=request.truncation is not False)
    return VoyageRerankResponse(
        object="list",
        data=[
            VoyageResult(
                index=item.index,
                relevance_score=relevance_of(item),
                document=request.documents[item.index] if request.return_documents else UNSET,
            )
            for item in ranked
        ],
        model=batch.model,
        usage=VoyageUsage(total_tokens=batch.usage.prompt_tokens),
        errors=rerank_errors(batch) or UNSET,
    )
