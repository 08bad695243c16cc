"""Cohere's rerank, version 2: strict, and documents without a score become warnings."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import WireError
from scorer.dialects.rerank_parts import faulty_items, ranked_items, relevance_of, rerank_request
from scorer.dialects.rerank_schema import ApiVersion, BilledUnits, MetaTokens, Relevance, RerankedDocument, RerankMeta
from scorer.dialects.schema import PositiveInt
from scorer.errors import Failure
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch, ScoredItem

MAX_DOCUMENTS: Final = 10_000
DEFAULT_DOCUMENT_TOKENS: Final = 4096
_DOCUMENTS_PER_UNIT: Final = 100


class CohereRerankRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One query and its documents."""

    model: Annotated[str, Meta(description="Any name: there is one model.")]
    query: str
    documents: Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None
    max_tokens_per_doc: Annotated[
        PositiveInt | None, Meta(description=f"Longer documents are cut. Default and null: {DEFAULT_DOCUMENT_TOKENS}.")
    ] = DEFAULT_DOCUMENT_TOKENS
    return_documents: Annotated[bool | None, Meta(description="Repeat the text in each result.")] = False
    priority: Annotated[
        Annotated[int, Meta(ge=0, le=999)] | None, Meta(description="Taken and not used: requests are served in turn.")
    ] = 0


class CohereResult(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    relevance_score: Relevance
    document: RerankedDocument | UnsetType = UNSET


class CohereRerankResponse(Struct, frozen=True):
    """Best first, ties by index. Documents without a score are named in `meta.warnings`."""

    id: str
    results: list[CohereResult]
    meta: RerankMeta


class CohereErrorBody(Struct, frozen=True):
    """Errors in the form of Cohere; `id` is the request's."""

    id: str
    message: str


def cohere_dialect() -> Dialect[CohereRerankRequest]:
    return Dialect(
        decode=StrictDecoder(CohereRerankRequest).decode,
        to_request=lambda request: rerank_request(
            request.query,
            request.documents,
            max_tokens_per_doc=request.max_tokens_per_doc or DEFAULT_DOCUMENT_TOKENS,
        ),
        reply=_reply,
        error_form=cohere_error,
    )


def cohere_error(failure: Failure) -> WireError:
    """Its statuses are the native ones."""
    return WireError(failure.status, CohereErrorBody(id=failure.request_id, message=failure.message))


def cohere_meta(batch: ScoredBatch, *, version: str, warn: bool = False) -> RerankMeta:
    """Counts and, if wanted, a warning for each document without a score."""
    warnings = [f"documents[{index}]: {fault.message}" for index, fault in faulty_items(batch)] if warn else []
    return RerankMeta(
        api_version=ApiVersion(version=version),
        billed_units=BilledUnits(search_units=-(-len(batch.items) // _DOCUMENTS_PER_UNIT)),
        tokens=MetaTokens(input_tokens=batch.usage.prompt_tokens, output_tokens=0),
        cached_tokens=batch.usage.cached_tokens,
        warnings=warnings or UNSET,
    )


def _reply(request: CohereRerankRequest, batch: ScoredBatch) -> CohereRerankResponse:
    return CohereRerankResponse(
        id=batch.request_id,
        results=[_result(item, request) for item in ranked_items(batch, request.top_n)],
        meta=cohere_meta(batch, version="2", warn=True),
    )


def _result(item: ScoredItem, request: CohereRerankRequest) -> CohereResult:
    text = request.documents[item.index]
    return CohereResult(
        index=item.index,
        relevance_score=relevance_of(item),
        document=RerankedDocument(text=text) if request.return_documents else UNSET,
    )
