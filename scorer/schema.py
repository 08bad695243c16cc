"""The native wire format: what ``POST /v1/batches/score`` takes and answers.

Limits that do not depend on settings are types here, so that the decoder enforces them and the
OpenAPI document states them. Docstrings and descriptions are written for users of the API.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from scorer.template_types import Order, ReadoutKind

MAX_COUNT = 2**31 - 1
MAX_LABELS = 64
REQUEST_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"

PositiveInt: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Index: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
ItemStatus: TypeAlias = Literal["ok", "error", "unscored"]


class TextItem(Struct, forbid_unknown_fields=True, frozen=True):
    """A text with a name of the caller's, which comes back with the result."""

    text: str
    id: Annotated[str, Meta(max_length=512)] | None = None


Texts: TypeAlias = Annotated[list[str | TextItem], Meta(min_length=1)]


class ReadoutSpec(Struct, forbid_unknown_fields=True, frozen=True):
    """What is read at the end of each prompt, and how it becomes a score."""

    kind: Annotated[
        Literal["auto", "labels", "likelihood"],
        Meta(description="`auto`: labels if `labels` is given, otherwise what the template says."),
    ] = "auto"
    labels: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_LABELS)] | None,
        Meta(description="Possible answers. Default: the template's."),
    ] = None
    positive: Annotated[
        str | None,
        Meta(
            description="The label whose probability is the score. Default: the template's if it is one of "
            "`labels`, otherwise the first."
        ),
    ] = None
    label_mass: Annotated[bool, Meta(description="Also give the probability that the answer is any of the labels.")] = (
        False
    )
    normalise: Annotated[
        Literal["labels", "vocabulary"],
        Meta(description="What the probabilities of the labels are shares of: all labels, or everything possible."),
    ] = "labels"
    temperature: Annotated[
        Annotated[float, Meta(ge=0.01, le=100.0)],
        Meta(description="Divides the log-weights before they are normalised over the labels."),
    ] = 1.0


class CacheSpec(Struct, forbid_unknown_fields=True, frozen=True):
    """How much of the prompts stays in the cache."""

    keep: Annotated[
        Literal["auto", "prefix", "all", "none"],
        Meta(
            description="`auto`: each prompt up to the text that varies last, so a document that comes first stays. "
            "`prefix`: only what all pairs of this request have in common. `all`: whole prompts. `none`: nothing."
        ),
    ] = "auto"


class ScoreRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """Queries × documents, or chosen pairs of them, under one template."""

    queries: Annotated[Texts, Meta(description="One or more queries.")]
    documents: Annotated[Texts, Meta(description="One or more documents.")]
    pairs: Annotated[
        Literal["all"] | Annotated[list[tuple[Index, Index]], Meta(min_length=1)],
        Meta(
            description="`all`: every query with every document, all documents of the first query first. "
            "Otherwise `[query index, document index]` pairs."
        ),
    ] = "all"
    model: Annotated[str | None, Meta(description="Must be the served model if it is given.")] = None
    template: Annotated[
        str | None, Meta(description="`name` or `name@version`. Default: the one that suits model and readout.")
    ] = None
    instruction: Annotated[
        str | None, Meta(description="Replaces the template's instruction; an empty text leaves it out.")
    ] = None
    system: Annotated[
        str | None, Meta(description="Replaces the template's system text; an empty text leaves it out.")
    ] = None
    readout: ReadoutSpec = field(default_factory=ReadoutSpec)
    order: Annotated[
        Literal["auto", "document_first", "query_first"],
        Meta(
            description="Which text comes first in the prompt; what comes first is shared. `auto`: the document, "
            "where the template can."
        ),
    ] = "auto"
    top_n: Annotated[
        PositiveInt | None,
        Meta(description="Return this many of the best, best first. Without it: all, in the order of the pairs."),
    ] = None
    truncate: Annotated[
        Literal["document", "error"],
        Meta(description="A document that does not fit is cut at its end, or its pair has an error."),
    ] = "document"
    max_tokens_per_doc: Annotated[
        PositiveInt | None, Meta(description="Longer documents are treated as `truncate` says.")
    ] = None
    max_tokens_per_query: Annotated[PositiveInt | None, Meta(description="Longer queries are cut at their end.")] = None
    cache: CacheSpec = field(default_factory=CacheSpec)
    deadline_ms: Annotated[
        PositiveInt | None,
        Meta(description="Time from arrival after which no further pair is started. Default and maximum: see /info."),
    ] = None
    request_id: Annotated[
        Annotated[str, Meta(pattern=REQUEST_ID)] | None,
        Meta(description="Comes back as `id`. Default: the `x-request-id` header, or a new one."),
    ] = None


class ItemUsage(Struct, frozen=True):
    """Where the tokens of one pair came from; `prompt = cached + shared + computed`.

    A set of labels of several tokens is one branch per label: each branch counts, and all but
    the first find the prompt among the shared tokens.
    """

    prompt_tokens: int
    cached_tokens: Annotated[int, Meta(description="In the cache before this request.")]
    shared_tokens: Annotated[int, Meta(description="Computed once for another pair or branch.")]
    computed_tokens: Annotated[int, Meta(description="Computed for this pair.")]
    truncated_tokens: Annotated[int, Meta(description="Cut from the texts of this pair.")]


class ItemError(Struct, frozen=True, omit_defaults=True):
    """Why a pair has no score."""

    code: str
    message: str
    retryable: bool
    field: str | None = None
    value: int | None = None
    limit: int | None = None


class ItemResult(Struct, frozen=True):
    """One pair. Numbers are rounded to seven significant digits."""

    index: Annotated[int, Meta(description="Place of the pair in the request.")]
    query_index: int
    document_index: int
    query_id: str | None
    document_id: str | None
    status: ItemStatus
    score: Annotated[
        float | UnsetType,
        Meta(
            description="Labels: probability of the positive label. Likelihood: mean natural log-probability of the "
            "tokens of the target."
        ),
    ] = UNSET
    label: Annotated[str | UnsetType, Meta(description="The most probable label; of equals, the first.")] = UNSET
    labels: Annotated[dict[str, float] | UnsetType, Meta(description="Probability of each label.")] = UNSET
    label_mass: Annotated[float | UnsetType, Meta(description="Probability that the answer is any of the labels.")] = (
        UNSET
    )
    log_prob_sum: Annotated[float | UnsetType, Meta(description="Natural log-probability of the whole target.")] = UNSET
    target_tokens: int | UnsetType = UNSET
    usage: ItemUsage | UnsetType = UNSET
    error: ItemError | UnsetType = UNSET


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: Annotated[int, Meta(description="Newly written to the cache.")]


class BatchUsage(Struct, frozen=True):
    """Sums over all pairs; `prompt = cached + shared + computed`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    shared_tokens: int
    computed_tokens: int
    truncated_tokens: int


class Timings(Struct, frozen=True):
    """Milliseconds. `ttft_ms` is arrival to the first score known; null if there is none."""

    tokenize_ms: float
    queue_ms: float
    prefill_ms: float
    readout_ms: float
    ttft_ms: float | None
    total_ms: float


class Counts(Struct, frozen=True):
    """How many pairs ended how; `top_n` does not change these."""

    ok: int
    error: int
    unscored: int


class ScoreResponse(Struct, frozen=True):
    """The pairs in the order that was asked for, and what they cost.

    Without `top_n`, results are in the order of the pairs. With it, the best scored pairs come
    first, ties by index, and pairs without a score follow, whatever `top_n` is.
    """

    id: str
    object: Literal["score_batch"]
    model: str
    template: str
    order: Order
    readout: ReadoutKind
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    results: list[ItemResult]
    counts: Counts
    usage: BatchUsage
    timings: Timings
