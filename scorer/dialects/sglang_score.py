"""SGLang's score: probabilities of label tokens after query and item, a row for each item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import sglang_error
from scorer.dialects.score_parts import (
    Prompts,
    ScoreUsage,
    TokenId,
    all_scores,
    check_alike,
    probabilities_of,
    score_usage,
)
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.prompt_request import PromptRequest, TextOrIds
from scorer.scoring.scores import rounded

MAX_LABELS: Final = 1024
_SMALLEST: Final = 5e-324
"""Of numbers above 0: a share that is none has a logarithm, too, which JSON can say."""

ItemLabels: TypeAlias = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LABELS)]
Labels: TypeAlias = Annotated[list[TokenId | ItemLabels], Meta(min_length=1)]

_NOT_SERVED = (
    "score_extraction_token",
    "embed_override_token_id",
    "query_embed_overrides",
    "item_embed_overrides",
    "return_pooled_hidden_states",
)


class SglangScoreRequest(Struct, frozen=True, kw_only=True):
    """Query and items, all as texts, in which special tokens are read, or all as token ids.

    Unknown fields are ignored; those that change the answer and cannot be served must be null or false.
    """

    items: Annotated[str | Prompts, Meta(description="None at all: no scores.")]
    label_token_ids: Annotated[
        Labels, Meta(description="Tokens whose probabilities are wanted: one list for all items, or a list for each.")
    ]
    query: str | list[TokenId] | None = None
    apply_softmax: Annotated[
        bool, Meta(description="Probabilities are shares of the labels; `false`: of the whole vocabulary.")
    ] = False
    temperature: Annotated[float, Meta(gt=0.0, le=100.0, description="Only with `apply_softmax`.")] = 1.0
    item_first: bool = False
    model: Annotated[str, Meta(description="Ignored: there is one model. The reply names it.")] = "default"
    score_extraction_token: Any = None
    embed_override_token_id: Any = None
    query_embed_overrides: Any = None
    item_embed_overrides: Any = None
    return_pooled_hidden_states: bool = False
    return_token_logprobs: Annotated[
        bool, Meta(description="Also give the natural log-probability of each label among the whole vocabulary.")
    ] = False


class SglangScoreResponse(Struct, frozen=True):
    """A row of probabilities for each item, in the order of the labels."""

    scores: list[list[float]]
    model: str
    usage: ScoreUsage
    object: Literal["scoring"]
    pooled_hidden_states: None = None
    token_logprobs: Annotated[
        list[list[float]] | None, Meta(description="As `scores`, if asked for; no temperature is applied.")
    ] = None


def sglang_score_dialect() -> Dialect[SglangScoreRequest]:
    return Dialect(
        decode=StrictDecoder(SglangScoreRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=sglang_error,
        partial=False,
    )


def _to_request(spoken: SglangScoreRequest) -> PromptRequest:
    _refuse_what_is_not_served(spoken)
    items: Sequence[TextOrIds] = [spoken.items] if isinstance(spoken.items, str) else spoken.items
    check_alike(items, "items")
    check_alike(spoken.label_token_ids, "label_token_ids")
    return PromptRequest(
        model=None,
        query=_query(spoken.query, items),
        items=items,
        labels=_labels(spoken.label_token_ids, len(items)),
        normalise="labels" if spoken.apply_softmax and not spoken.return_token_logprobs else "vocabulary",
        temperature=1.0 if spoken.return_token_logprobs else spoken.temperature,
        item_first=spoken.item_first,
        joined=True,
    )


def _refuse_what_is_not_served(spoken: SglangScoreRequest) -> None:
    for name in _NOT_SERVED:
        if getattr(spoken, name):
            raise InvalidValue(f"`{name}` is not served here; leave it out", field=name)
    if spoken.temperature != 1.0 and not spoken.apply_softmax:
        raise InvalidValue(
            "a temperature can only be applied to labels that are normalised among themselves: set apply_softmax",
            field="temperature",
            value=spoken.temperature,
            limit=1.0,
        )


def _query(query: TextOrIds | None, items: Sequence[TextOrIds]) -> TextOrIds:
    """The query, which must be of the kind of the items."""
    as_text = not items or isinstance(items[0], str)
    if query is None:
        return "" if as_text else ()
    if items and isinstance(query, str) != as_text:
        raise InvalidValue("query and items must all be texts or all be token ids", field="query")
    return query


def _labels(labels: Sequence[int | list[int]], num_items: int) -> list[Sequence[int]]:
    """One list for all items, or one for each."""
    lists = [each for each in labels if isinstance(each, list)]
    if not lists and len(labels) > MAX_LABELS:
        raise InvalidValue(
            f"there are {len(labels)} labels, the limit is {MAX_LABELS}",
            field="label_token_ids",
            value=len(labels),
            limit=MAX_LABELS,
        )
    if not lists:
        return [[each for each in labels if isinstance(each, int)]]
    if len(lists) != num_items:
        raise InvalidValue(
            f"there are {len(lists)} lists of labels and {num_items} items",
            field="label_token_ids",
            value=len(lists),
            limit=num_items,
        )
    return [*lists]


def _reply(spoken: SglangScoreRequest, batch: ScoredBatch) -> SglangScoreResponse:
    rows = [probabilities_of(score) for score in all_scores(batch, queries="query", documents="items")]
    log_probs = None
    if spoken.return_token_logprobs:  # the rows are shares of the vocabulary, then
        exact = [[math.log(max(share, _SMALLEST)) for share in row] for row in rows]
        log_probs = [list(map(rounded, row)) for row in exact]
        if spoken.apply_softmax:
            rows = [_softmax(row, spoken.temperature) for row in exact]
    return SglangScoreResponse(
        scores=rows, model=batch.model, usage=score_usage(batch), object="scoring", token_logprobs=log_probs
    )


def _softmax(log_probs: Sequence[float], temperature: float) -> list[float]:
    """Shares of the labels alone: what the vocabulary is divided by cancels out."""
    top = max(log_probs)
    weights = [math.exp((log_prob - top) / temperature) for log_prob in log_probs]
    return [rounded(weight / math.fsum(weights)) for weight in weights]
