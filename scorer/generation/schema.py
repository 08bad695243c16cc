"""The wire format of ``POST /v1/generate``. Docstrings and descriptions are written for users of the API."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from scorer.dialects.schema import REQUEST_ID, PositiveInt, PromptTokensDetails, Timings
from scorer.dialects.score_parts import Salt

MAX_TOKENS = 64
MAX_BRANCHES = 16
MAX_STOPS = 8
MAX_STOP_CHARACTERS = 256
MAX_SEED = 2**53 - 1
"""The greatest integer that all JSON readers agree on."""

FinishReason: TypeAlias = Literal["stop", "length", "deadline", "non_finite"]
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class GenerateRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A prompt of the caller's own, or a query and a document under a template; and how it is continued."""

    prompt: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Read as it is: special tokens count where they are written. Excludes what a template takes."),
    ] = None
    query: Annotated[
        str | None,
        Meta(description="For the template. Left out under one that is read by likelihood: the model writes it."),
    ] = None
    document: Annotated[str | None, Meta(description="For the template. Default: an empty text.")] = None
    template: Annotated[
        str | None,
        Meta(description="`name` or `name@version` of a template that lists nothing. Default: as for labels."),
    ] = None
    instruction: Annotated[str | None, Meta(description="Replaces the template's instruction.")] = None
    system: Annotated[str | None, Meta(description="Replaces the template's system text.")] = None
    order: Annotated[
        Literal["auto", "document_first", "query_first"],
        Meta(description="Which text comes first in the template. `auto`: the document, where the template can."),
    ] = "auto"
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS, description="Most tokens of a choice.")] = 16
    n: Annotated[int, Meta(ge=1, le=MAX_BRANCHES, description="Choices, all from one prompt that is stored once.")] = 1
    temperature: Annotated[
        float, Meta(ge=0.0, le=100.0, description="Divides the logits. 0: the most probable token each time.")
    ] = 0.0
    top_p: Annotated[
        float, Meta(ge=1e-6, le=1.0, description="Draw from the most probable tokens that reach this share.")
    ] = 1.0
    top_k: Annotated[
        int, Meta(ge=0, le=2**31 - 1, description="Draw from so many of the most probable tokens. 0: all.")
    ] = 0
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SEED)] | None,
        Meta(description="The same seed draws the same, whatever else is served. Default: a new one, see the answer."),
    ] = None
    stop: Annotated[
        list[Stop], Meta(max_length=MAX_STOPS, description="Texts that end a choice and are not part of it.")
    ] = field(default_factory=list)
    stream: Annotated[bool, Meta(description="Answer with server-sent events as text comes.")] = False
    cache_salt: Annotated[Salt | None, Meta(description="Only requests with the same salt meet in the cache.")] = None
    model: Annotated[str | None, Meta(description="Must be the served model if it is given.")] = None
    deadline_ms: Annotated[
        PositiveInt | None,
        Meta(description="Time from arrival after which no further token is computed. Default and maximum: see /info."),
    ] = None
    request_id: Annotated[
        Annotated[str, Meta(pattern=REQUEST_ID)] | None,
        Meta(description="Comes back as `id`. Default: the `x-request-id` header, or a new one."),
    ] = None


class GenerateChoice(Struct, frozen=True, kw_only=True):
    """One continuation."""

    index: int
    text: str
    finish_reason: Annotated[
        FinishReason,
        Meta(
            description="`stop`: the model ended, or a stop text came. `length`: `max_tokens`. `deadline`: cut by it. "
            "`non_finite`: the model gave NaN or infinity."
        ),
    ]
    completion_tokens: int
    log_prob_sum: Annotated[
        float, Meta(description="Natural log-probability of the tokens, at temperature 1 and over all tokens.")
    ]


class GenerateUsage(Struct, frozen=True, kw_only=True):
    """The prompt counts once, however many choices continue it."""

    prompt_tokens: int
    completion_tokens: Annotated[int, Meta(description="Sum over all choices; a token that ends one does not count.")]
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    computed_tokens: Annotated[int, Meta(description="Positions that the model ran, of the prompt and after it.")]


class GenerateResponse(Struct, frozen=True, kw_only=True):
    """All choices, and what they cost."""

    id: str
    object: Literal["generation"]
    model: str
    template: Annotated[str | None, Meta(description="Null for a prompt of the caller's own.")]
    seed: int
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    choices: list[GenerateChoice]
    usage: GenerateUsage
    timings: Timings


class GenerateText(Struct, frozen=True, kw_only=True):
    """Data of an event `text`: what comes next in one choice. `finish_reason` is null until its last."""

    index: int
    text: str
    finish_reason: FinishReason | None


class GenerateEnd(Struct, frozen=True, kw_only=True):
    """Data of the last event, `usage`."""

    id: str
    object: Literal["generation.usage"]
    model: str
    template: str | None
    seed: int
    created: int
    usage: GenerateUsage
    timings: Timings
