"""The Jina and Cohere form of reranking: one query, many documents, best first.

Lenient, as its clients need it: unknown fields are ignored and every optional field may be null.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.schema import BatchUsage, ItemError, PositiveInt


class RerankText(Struct, frozen=True):
    """A text as an object; other keys are ignored."""

    text: str


class RerankRequest(Struct, frozen=True):
    """One query and its documents."""

    query: str | RerankText
    documents: Annotated[list[str | RerankText], Meta(min_length=1)]
    model: Annotated[str | None, Meta(description="Ignored: there is one model. The reply names it.")] = None
    top_n: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None
    top_k: Annotated[PositiveInt | None, Meta(description="Another name of `top_n`.")] = None
    return_documents: Annotated[bool | None, Meta(description="Repeat the text in each result.")] = False
    truncation: Annotated[
        bool | None, Meta(description="Cut documents that do not fit. `false`: such a document is an error.")
    ] = True
    max_tokens_per_doc: Annotated[PositiveInt | None, Meta(description="Longer documents do not fit.")] = None
    instruction: Annotated[str | None, Meta(description="Replaces the template's instruction.")] = None


class RerankedDocument(Struct, frozen=True):
    text: str


class RerankResult(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    relevance_score: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Labels: probability of the positive label. Likelihood: exp of the mean log-probability.",
        ),
    ]
    document: RerankedDocument | UnsetType = UNSET
    truncated_tokens: Annotated[int | UnsetType, Meta(description="Cut from the document, if any.")] = UNSET


class RerankError(Struct, frozen=True):
    """A document that has no score."""

    index: int
    error: ItemError


class ApiVersion(Struct, frozen=True):
    version: str


class MetaTokens(Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class RerankMeta(Struct, frozen=True):
    """What clients of Cohere read."""

    api_version: ApiVersion
    tokens: MetaTokens
    cached_tokens: int


class RerankResponse(Struct, frozen=True):
    """Best first, ties by index. `errors` is there only if a document has no score."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResult]
    usage: BatchUsage
    meta: RerankMeta
    errors: list[RerankError] | UnsetType = UNSET
