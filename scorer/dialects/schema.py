"""The native wire format: what ``POST /v1/batches/score`` takes and answers.

Limits that do not depend on settings are types here, so that the decoder enforces them and the
OpenAPI document states them. Docstrings and descriptions are written for users of the API.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from scorer.templates.types import Order, ReadoutKind

MAX_COUNT = 2**31 - 1
MAX_LABELS = 64
MAX_OPTIONS = 26
REQUEST_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"

PositiveInt: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Index: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
ItemStatus: TypeAlias = Literal["ok", "error", "unscored"]
TruncationSide: TypeAlias = Literal["right", "left"]


class TextItem(Struct, forbid_unknown_fields=True, frozen=True):
    """A text with a name of the caller's, which comes back with the result."""

    text: str
    id: Annotated[str, Meta(max_length=512)] | None = None


Texts: TypeAlias = Annotated[list[str | TextItem], Meta(min_length=1)]
Finite: TypeAlias = Annotated[float, Meta(ge=-1e9, le=1e9)]


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
    values: Annotated[
        Annotated[list[Finite], Meta(min_length=2, max_length=MAX_LABELS)] | None,
        Meta(description="What each label is worth. The score is then their mean, weighed by the probabilities."),
    ] = None
    debias: Annotated[
        Literal["auto", "none", "reverse", "rotate"],
        Meta(
            description="Average over orders of the labels, options or documents that the prompt lists. `reverse`: "
            "forwards and backwards. `rotate`: each at each place once. `auto`: what the template says."
        ),
    ] = "auto"
    content_free: Annotated[
        str | None,
        Meta(
            description="A document that says nothing, such as `N/A`. What the model reads from it for the same query "
            "is taken off: a query that is likely after anything gains nothing by that."
        ),
    ] = None


Option: TypeAlias = Annotated[str, Meta(min_length=1)]


class QueryItem(Struct, forbid_unknown_fields=True, frozen=True):
    """A query that is read in its own way. Queries of one document are branches behind it."""

    text: str
    id: Annotated[str, Meta(max_length=512)] | None = None
    options: Annotated[
        Annotated[list[Option], Meta(min_length=2, max_length=MAX_OPTIONS)] | None,
        Meta(description="Texts to choose from. Without a template of its own, the query gets one that lists them."),
    ] = None
    template: Annotated[str | None, Meta(description="Default: that of the request.")] = None
    readout: Annotated[ReadoutSpec | None, Meta(description="Default: that of the request.")] = None


class ChunkSpec(Struct, forbid_unknown_fields=True, frozen=True):
    """Documents longer than `max_tokens` are scored part by part."""

    max_tokens: Annotated[int, Meta(ge=8, le=MAX_COUNT, description="Most tokens of a part.")]
    overlap_tokens: Annotated[
        int, Meta(ge=0, le=MAX_COUNT, description="Tokens that a part repeats of the one before it.")
    ] = 0
    combine: Annotated[
        Literal["max", "mean"], Meta(description="The score of the document: that of its best part, or the mean.")
    ] = "max"


class CacheSpec(Struct, forbid_unknown_fields=True, frozen=True):
    """How much of the prompts stays in the cache."""

    keep: Annotated[
        Literal["auto", "prefix", "all", "none"],
        Meta(
            description="`auto`: each prompt up to the text that varies last, so a document that comes first stays. "
            "`prefix`: only what all pairs of this request have in common. `all`: whole prompts. `none`: nothing."
        ),
    ] = "auto"
    key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(description="Only requests with the same key meet in the cache."),
    ] = None


class ScoreOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """How pairs are scored and answered."""

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
        Meta(description="A document that does not fit is cut, or its pair has an error."),
    ] = "document"
    truncation_side: Annotated[
        TruncationSide, Meta(description="What a document that is cut loses: its end or its beginning.")
    ] = "right"
    max_tokens_per_doc: Annotated[
        PositiveInt | None, Meta(description="Longer documents are treated as `truncate` says.")
    ] = None
    max_tokens_per_query: Annotated[PositiveInt | None, Meta(description="Longer queries are cut at their end.")] = None
    chunking: Annotated[
        ChunkSpec | None, Meta(description="Score long documents part by part, behind the same instruction.")
    ] = None
    calibration: Annotated[
        Literal["auto", "none"],
        Meta(description="`auto`: the one that the server has for this model and template, if any."),
    ] = "auto"
    max_tokens_per_prompt: Annotated[
        PositiveInt | None, Meta(description="What the model can take, if that is less. Documents make room.")
    ] = None
    cache: CacheSpec = field(default_factory=CacheSpec)
    deadline_ms: Annotated[
        PositiveInt | None,
        Meta(description="Time from arrival after which no further pair is started. Default and maximum: see /info."),
    ] = None
    request_id: Annotated[
        Annotated[str, Meta(pattern=REQUEST_ID)] | None,
        Meta(description="Comes back as `id`. Default: the `x-request-id` header, or a new one."),
    ] = None


class ScoreRequest(ScoreOptions, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Queries × documents, or chosen pairs of them, under one template."""

    queries: Annotated[
        Annotated[list[str | QueryItem], Meta(min_length=1)],
        Meta(description="One or more queries, each a text or an object."),
    ]
    documents: Annotated[Texts, Meta(description="One or more documents.")]
    pairs: Annotated[
        Literal["all"] | Annotated[list[tuple[Index, Index]], Meta(min_length=1)],
        Meta(
            description="`all`: every query with every document, all documents of the first query first. "
            "Otherwise `[query index, document index]` pairs."
        ),
    ] = "all"


class ItemUsage(Struct, frozen=True):
    """Where the tokens of one pair came from; `prompt = cached + shared + computed`.

    A set of labels of several tokens is one branch per label: each branch counts, and all but
    the first find the prompt among the shared tokens.
    """

    prompt_tokens: int
    cached_tokens: Annotated[int, Meta(description="In the cache before this request.")]
    shared_tokens: Annotated[
        int, Meta(description="Computed once for another pair or branch, or for a request beside this one.")
    ]
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
            description="Labels: probability of the positive label, or what the template makes of their logits or "
            "values. Likelihood: mean natural log-probability of the tokens of the target. Options: probability "
            "of the chosen one. Documents that are compared: probability of being the best of their set, or the mean "
            "over the comparisons."
        ),
    ] = UNSET
    relevance: Annotated[float | UnsetType, Meta(description="The score on a scale of 0 to 1.")] = UNSET
    label: Annotated[str | UnsetType, Meta(description="The most probable label; of equals, the first.")] = UNSET
    labels: Annotated[dict[str, float] | UnsetType, Meta(description="Probability of each label.")] = UNSET
    label_mass: Annotated[float | UnsetType, Meta(description="Probability that the answer is any of the labels.")] = (
        UNSET
    )
    choice: Annotated[int | UnsetType, Meta(description="Index of the most probable option; of equals, the first.")] = (
        UNSET
    )
    probabilities: Annotated[
        list[float] | UnsetType, Meta(description="Probability of each option, in the order of the request.")
    ] = UNSET
    log_prob_sum: Annotated[float | UnsetType, Meta(description="Natural log-probability of the whole target.")] = UNSET
    target_tokens: int | UnsetType = UNSET
    spread: Annotated[
        float | UnsetType, Meta(description="Greatest less smallest score over the orders that were averaged.")
    ] = UNSET
    agreement: Annotated[
        float | UnsetType, Meta(description="Share of the orders whose most probable answer is that of the mean.")
    ] = UNSET
    num_chunks: Annotated[int | UnsetType, Meta(description="Parts of the document.")] = UNSET
    best_chunk: Annotated[int | UnsetType, Meta(description="The part with the best score, from 0.")] = UNSET
    template: Annotated[
        str | UnsetType, Meta(description="Only where the queries of a request have several templates.")
    ] = UNSET
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
    template: Annotated[str, Meta(description="That of the first pair.")]
    order: Order
    readout: ReadoutKind
    calibration: Annotated[str | None, Meta(description="`name@version` of the calibration that was applied.")]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    results: list[ItemResult]
    counts: Counts
    usage: BatchUsage
    timings: Timings


class StreamTimings(Struct, frozen=True):
    """Milliseconds. `ttft_ms` is arrival to the first score known; null if there is none."""

    tokenize_ms: float
    queue_ms: float
    ttft_ms: float | None
    total_ms: float


class StreamEnd(Struct, frozen=True):
    """The last line of an answer in lines: what all pairs cost. Without it the answer is incomplete."""

    id: str
    object: Literal["score_batch.end"]
    model: str
    template: Annotated[str, Meta(description="That of the first pair.")]
    order: Order
    readout: ReadoutKind
    calibration: Annotated[str | None, Meta(description="`name@version` of the calibration that was applied.")]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    counts: Counts
    usage: BatchUsage
    timings: StreamTimings
