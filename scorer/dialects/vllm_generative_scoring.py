"""vLLM's generative scoring: how likely the next token after query and item is the first of some labels."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import vllm_error
from scorer.dialects.score_parts import (
    GivenId,
    Prompts,
    Salt,
    TokenId,
    all_scores,
    check_alike,
    probabilities_of,
    refuse_priority,
)
from scorer.dialects.vllm_options import own_request_id
from scorer.dialects.vllm_score import VllmScoreResponse, score_list
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.prompt_request import PromptRequest

MAX_LABELS = 128


class GenerativeScoringRequest(Struct, frozen=True, kw_only=True):
    """Query and items as texts, in which special tokens are read, or as token ids. Unknown fields are ignored."""

    query: str | list[TokenId]
    items: Annotated[Prompts, Meta(min_length=1, description="All texts or all token ids.")]
    label_token_ids: Annotated[
        list[TokenId],
        Meta(min_length=1, max_length=MAX_LABELS, description="The score is the probability of the first."),
    ]
    model: Annotated[str | None, Meta(description="Must be the served model if it is given.")] = None
    apply_softmax: Annotated[
        bool, Meta(description="Probabilities are shares of the labels; `false`: of the whole vocabulary.")
    ] = True
    item_first: bool = False
    add_special_tokens: Annotated[bool, Meta(description="Put before a query text what the tokenizer puts there.")] = (
        True
    )
    cache_salt: Annotated[Salt | None, Meta(description="Only requests with the same salt meet in the cache.")] = None
    priority: Annotated[int, Meta(description="Must be 0: requests are served in order of arrival.")] = 0
    request_id: Annotated[GivenId | None, Meta(description="Comes back in `id`.")] = None


def generative_scoring_dialect() -> Dialect[GenerativeScoringRequest]:
    return Dialect(
        decode=StrictDecoder(GenerativeScoringRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=vllm_error,
        partial=False,
        salt=lambda spoken: spoken.cache_salt,
    )


def _to_request(spoken: GenerativeScoringRequest) -> PromptRequest:
    refuse_priority(spoken.priority)
    check_alike(spoken.items, "items")
    return PromptRequest(
        model=spoken.model,
        query=spoken.query,
        items=spoken.items,
        labels=[list(dict.fromkeys(spoken.label_token_ids))],  # one that is repeated counts once
        normalise="labels" if spoken.apply_softmax else "vocabulary",
        item_first=spoken.item_first,
        lead=spoken.add_special_tokens,
        cut=True,
        request_id=own_request_id(spoken.request_id),
    )


def _reply(spoken: GenerativeScoringRequest, batch: ScoredBatch) -> VllmScoreResponse:
    scores = [probabilities_of(score)[0] for score in all_scores(batch, queries="query", documents="items")]
    return score_list(scores, batch, reply_id=f"generative-scoring-{spoken.request_id or batch.request_id}")
