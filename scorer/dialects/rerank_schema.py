"""Requests and answers of the lenient rerank form, and the parts that other rerank forms share.

Lenient, as its clients need it: unknown fields are ignored and every optional field may be null.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.schema import MAX_COUNT, REQUEST_ID, BatchUsage, ItemError, PositiveInt

LimitOrZero: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]


class RerankText(Struct, frozen=True):
    """A text as an object; other keys are ignored."""

    text: str


Documents: TypeAlias = Annotated[list[str | RerankText], Meta(min_length=1)]
Relevance: TypeAlias = Annotated[
    float,
    Meta(
        ge=0.0,
        le=1.0,
        description="Labels: probability of the positive label. Likelihood: exp of the mean log-probability.",
    ),
]


class RerankRequest(Struct, frozen=True):
    """One query and its documents, in the form of Jina, vLLM and version 1 of Cohere."""

    query: str | RerankText
    documents: Documents
    model: Annotated[str | None, Meta(description="Ignored: there is one model. The reply names it.")] = None
    top_n: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None
    top_k: Annotated[
        PositiveInt | None, Meta(description="May repeat `top_n`. Alone it makes the request one of Voyage's.")
    ] = None
    return_documents: Annotated[bool | None, Meta(description="Repeat the text in each result.")] = False
    truncation: Annotated[
        bool | None, Meta(description="Cut documents that do not fit. `false`: such a document is an error.")
    ] = True
    max_tokens_per_doc: Annotated[
        LimitOrZero | None, Meta(description="Longer documents do not fit. 0: no such limit.")
    ] = None
    max_tokens_per_query: Annotated[
        LimitOrZero | None, Meta(description="Longer queries are cut. 0: no such limit.")
    ] = None
    instruction: Annotated[str | None, Meta(description="Replaces the template's instruction.")] = None
    deadline_ms: Annotated[
        PositiveInt | None,
        Meta(
            description="Time from arrival after which no further document is started. Default and maximum: see /info."
        ),
    ] = None
    request_id: Annotated[Annotated[str, Meta(pattern=REQUEST_ID)] | None, Meta(description="Comes back as `id`.")] = (
        None
    )


class RerankedDocument(Struct, frozen=True):
    text: str


class RerankResult(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    relevance_score: Relevance
    document: RerankedDocument | UnsetType = UNSET
    truncated_tokens: Annotated[int | UnsetType, Meta(description="Cut from the document, if any.")] = UNSET


class RerankError(Struct, frozen=True):
    """A document that has no score."""

    index: int
    error: ItemError


class ApiVersion(Struct, frozen=True):
    version: str


class BilledUnits(Struct, frozen=True):
    """For clients that add up what they use; nothing is billed."""

    search_units: Annotated[int, Meta(description="One for every 100 documents begun.")]


class MetaTokens(Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class RerankMeta(Struct, frozen=True):
    """What clients of Cohere read."""

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: MetaTokens
    cached_tokens: int
    warnings: Annotated[list[str] | UnsetType, Meta(description="Documents that have no score, and why.")] = UNSET


class RerankResponse(Struct, frozen=True):
    """Best first, ties by index. `errors` is there only if a document has no score."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResult]
    usage: BatchUsage
    meta: RerankMeta
    errors: list[RerankError] | UnsetType = UNSET
