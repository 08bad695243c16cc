"""vLLM's score: pairs of texts, one score each, in the order of the request."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import vllm_error
from scorer.dialects.rerank_parts import log_odds
from scorer.dialects.schema import MAX_COUNT, REQUEST_ID, ScoreRequest, TruncationSide
from scorer.dialects.score_parts import GivenId, Salt, ScoreUsage, all_scores, refuse_priority, score_usage
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch

_REQUEST_ID = re.compile(REQUEST_ID)

TokenLimit: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]


class VllmTextPart(Struct, frozen=True):
    """A part of a text; there are no others here."""

    type: Literal["text"]
    text: str


class VllmContent(Struct, frozen=True):
    """A text in parts, which are joined by line ends."""

    content: Annotated[list[VllmTextPart], Meta(min_length=1)]


ScoreInput: TypeAlias = str | VllmContent
ScoreInputs: TypeAlias = ScoreInput | Annotated[list[ScoreInput], Meta(min_length=1)]


class _Options(Struct, frozen=True, kw_only=True):
    """What all spellings have in common. Unknown fields are ignored."""

    model: Annotated[str | None, Meta(description="Must be the served model if it is given.")] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_COUNT)] | None,
        Meta(
            description="Longest prompt; -1: what the model takes. Documents are cut to make it fit; without this and "
            "without `max_tokens_per_doc`, one that does not fit is an error."
        ),
    ] = None
    truncation_side: Annotated[
        TruncationSide | None,
        Meta(description="What a document that is cut loses: its end (also null) or its beginning."),
    ] = None
    max_tokens_per_query: Annotated[TokenLimit, Meta(description="Longer queries are cut. 0: no limit.")] = 0
    max_tokens_per_doc: Annotated[TokenLimit, Meta(description="Longer documents are cut. 0: no limit.")] = 0
    instruction: Annotated[str | None, Meta(description="Replaces the template's instruction.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="`instruction` in it wins over the field; other keys are ignored.")
    ] = None
    use_activation: Annotated[
        bool | None, Meta(description="`false`: log-odds of the relevance instead of the relevance.")
    ] = None
    request_id: Annotated[GivenId | None, Meta(description="Comes back in `id`.")] = None
    priority: Annotated[int, Meta(description="Must be 0: requests are served in order of arrival.")] = 0
    cache_salt: Annotated[Salt | None, Meta(description="Only requests with the same salt meet in the cache.")] = None


class VllmQueriesDocuments(_Options, frozen=True, kw_only=True):
    """Queries and documents: one and one, one and many, or equally many."""

    queries: ScoreInputs
    documents: ScoreInputs


class VllmQueriesItems(_Options, frozen=True, kw_only=True):
    """As `queries` and `documents`."""

    queries: ScoreInputs
    items: ScoreInputs


class VllmData(_Options, frozen=True, kw_only=True):
    """As `queries` and `documents`."""

    data_1: ScoreInputs
    data_2: ScoreInputs


class VllmTexts(_Options, frozen=True, kw_only=True):
    """As `queries` and `documents`."""

    text_1: ScoreInputs
    text_2: ScoreInputs


SPELLINGS: Final[tuple[tuple[type[_Options], str, str], ...]] = (
    (VllmQueriesDocuments, "queries", "documents"),
    (VllmQueriesItems, "queries", "items"),
    (VllmData, "data_1", "data_2"),
    (VllmTexts, "text_1", "text_2"),
)
"""Each spelling with its names of queries and documents."""


class VllmScore(Struct, frozen=True):
    index: int
    object: Literal["score"]
    score: Annotated[float, Meta(description="The relevance, from 0 to 1, unless `use_activation` is `false`.")]


class VllmScoreResponse(Struct, frozen=True):
    """Scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    model: str
    data: list[VllmScore]
    usage: ScoreUsage


def vllm_score_dialects() -> list[tuple[frozenset[str], Dialect[Any]]]:
    """One for each spelling, with the keys that tell it."""
    return [
        (frozenset({queries, documents}), _dialect(kind, queries, documents)) for kind, queries, documents in SPELLINGS
    ]


def _dialect(kind: type[_Options], queries: str, documents: str) -> Dialect[_Options]:
    def to_request(spoken: _Options) -> ScoreRequest:
        return _to_request(spoken, queries, documents)

    def reply(spoken: _Options, batch: ScoredBatch) -> VllmScoreResponse:
        relevances = [score.relevance for score in all_scores(batch, queries=queries, documents=documents)]
        shown = map(log_odds, relevances) if spoken.use_activation is False else relevances
        return score_list(shown, batch, reply_id=f"score-{spoken.request_id or batch.request_id}")

    return Dialect(
        decode=StrictDecoder(kind).decode,
        to_request=to_request,
        reply=reply,
        error_form=vllm_error,
        partial=False,
        salt=lambda spoken: spoken.cache_salt,
    )


def score_list(scores: Iterable[float], batch: ScoredBatch, *, reply_id: str) -> VllmScoreResponse:
    """The answer of every score route of vLLM."""
    return VllmScoreResponse(
        id=reply_id,
        object="list",
        created=int(time.time()),
        model=batch.model,
        data=[VllmScore(index=index, object="score", score=score) for index, score in enumerate(scores)],
        usage=score_usage(batch),
    )


def own_request_id(given: str | None) -> str | None:
    """The id under which a request is logged: the given one, if it is a plain short name."""
    return given if given is not None and _REQUEST_ID.match(given) else None


def _to_request(spoken: _Options, queries: str, documents: str) -> ScoreRequest:
    refuse_priority(spoken.priority)
    first, second = _texts(getattr(spoken, queries)), _texts(getattr(spoken, documents))
    if len(first) > 1 and len(first) != len(second):
        raise InvalidValue(
            f"there are {len(first)} {queries} and {len(second)} {documents}; "
            "one and one, one and many, or equally many are wanted",
            field=documents,
            value=len(second),
            limit=len(first),
        )
    limit = spoken.truncate_prompt_tokens
    if limit == 0:
        raise InvalidValue("no token is left of a prompt of 0 tokens", field="truncate_prompt_tokens", value=0, limit=1)
    return ScoreRequest(
        queries=list(first),
        documents=list(second),
        pairs="all" if len(first) == 1 else [(index, index) for index in range(len(first))],
        model=spoken.model,
        instruction=_instruction(spoken),
        truncate="document" if limit is not None or spoken.max_tokens_per_doc else "error",
        truncation_side=spoken.truncation_side or "right",
        max_tokens_per_prompt=None if limit in (None, -1) else limit,
        max_tokens_per_doc=spoken.max_tokens_per_doc or None,
        max_tokens_per_query=spoken.max_tokens_per_query or None,
        request_id=own_request_id(spoken.request_id),
    )


def _instruction(spoken: _Options) -> str | None:
    given = (spoken.chat_template_kwargs or {}).get("instruction", spoken.instruction)
    if not isinstance(given, str | None):
        raise InvalidValue("the instruction must be a text", field="chat_template_kwargs.instruction")
    return given


def _texts(inputs: ScoreInputs) -> list[str]:
    return [_text(each) for each in (inputs if isinstance(inputs, list) else [inputs])]


def _text(given: ScoreInput) -> str:
    return given if isinstance(given, str) else "\n".join(part.text for part in given.content)
