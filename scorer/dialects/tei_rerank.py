"""text-embeddings-inference's rerank: ``texts``, a bare array, all documents or none."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import tei_error
from scorer.dialects.rerank_parts import ranked_items, raw_score_of, relevance_of, rerank_request
from scorer.dialects.schema import PositiveInt, TruncationSide
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch

Direction: TypeAlias = Literal["right", "Right", "left", "Left"]


def side_of(direction: Direction | None) -> TruncationSide:
    """In native terms."""
    return "left" if direction in {"left", "Left"} else "right"


class TeiRerankRequest(Struct, frozen=True):
    """One query and its documents; unknown fields are ignored."""

    query: str
    texts: Annotated[list[str], Meta(min_length=1)]
    truncate: Annotated[
        bool | None, Meta(description="Cut texts that do not fit (also null). `false`: such a text is an error.")
    ] = None
    truncation_direction: Annotated[
        Direction | None, Meta(description="What a text that is cut loses: its end (also null) or its beginning.")
    ] = "right"
    raw_scores: Annotated[bool | None, Meta(description="Log-odds of the relevance instead of the relevance.")] = False
    return_text: Annotated[bool | None, Meta(description="Repeat the text in each rank.")] = False
    top_n: Annotated[
        PositiveInt | None, Meta(description="Return this many. Default: all. An addition of llama.cpp's.")
    ] = None


class TeiRank(Struct, frozen=True):
    """One text. The answer is an array of these, best first, ties by index."""

    index: Annotated[int, Meta(description="Place of the text in the request.")]
    score: float
    text: str | UnsetType = UNSET


def tei_rerank_dialect() -> Dialect[TeiRerankRequest]:
    return Dialect(
        decode=StrictDecoder(TeiRerankRequest).decode,
        to_request=lambda request: rerank_request(
            request.query,
            request.texts,
            truncate=request.truncate is not False,
            truncation_side=side_of(request.truncation_direction),
        ),
        reply=_reply,
        error_form=tei_error,
        partial=False,
    )


def _reply(request: TeiRerankRequest, batch: ScoredBatch) -> list[TeiRank]:
    score_of = raw_score_of if request.raw_scores else relevance_of
    return [
        TeiRank(
            index=item.index,
            score=score_of(item),
            text=request.texts[item.index] if request.return_text else UNSET,
        )
        for item in ranked_items(batch, request.top_n, partial=False, documents="texts")
    ]
