"""vLLM's rerank: documents always come back, ``top_n`` 0 means all, all of them are scored or none."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import vllm_error
from scorer.dialects.rerank_parts import ranked_items, raw_score_of, relevance_of
from scorer.dialects.vllm_options import ScoreInput, ScoreInputs, TokenLimit, VllmOptions, pairs_request, texts_of
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch

OWN_KEYS: Final = ("cache_salt", "chat_template_kwargs", "truncate_prompt_tokens", "truncation_side", "use_activation")
"""Fields that no other rerank form has; any of them tells this one."""


class VllmRerankRequest(VllmOptions, frozen=True, kw_only=True):
    """One query and its documents."""

    query: ScoreInput
    documents: ScoreInputs
    top_n: Annotated[TokenLimit, Meta(description="Return this many. 0: all.")] = 0


class VllmDocument(Struct, frozen=True):
    text: str
    multi_modal: None = None


class VllmRerankResult(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    document: VllmDocument
    relevance_score: Annotated[float, Meta(description="From 0 to 1, unless `use_activation` is `false`.")]


class VllmRerankUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class VllmRerankResponse(Struct, frozen=True):
    """Best first, ties by index."""

    id: str
    model: str
    usage: VllmRerankUsage
    results: list[VllmRerankResult]


def vllm_rerank_dialect() -> Dialect[VllmRerankRequest]:
    return Dialect(
        decode=StrictDecoder(VllmRerankRequest).decode,
        to_request=lambda spoken: pairs_request(
            spoken, texts_of(spoken.query), texts_of(spoken.documents), names=("query", "documents")
        ),
        reply=_reply,
        error_form=vllm_error,
        partial=False,
        salt=lambda spoken: spoken.cache_salt,
    )


def _reply(spoken: VllmRerankRequest, batch: ScoredBatch) -> VllmRerankResponse:
    texts = texts_of(spoken.documents)
    score_of = raw_score_of if spoken.use_activation is False else relevance_of
    tokens = batch.usage.prompt_tokens
    return VllmRerankResponse(
        id=f"rerank-{spoken.request_id or batch.request_id}",
        model=batch.model,
        usage=VllmRerankUsage(prompt_tokens=tokens, total_tokens=tokens),
        results=[
            VllmRerankResult(index=item.index, document=VllmDocument(texts[item.index]), relevance_score=score_of(item))
            for item in ranked_items(batch, spoken.top_n or None, partial=False)
        ],
    )
