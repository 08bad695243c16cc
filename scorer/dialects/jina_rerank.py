"""Jina's rerank to the letter: strict, and documents come back unless they are not wanted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import detail_error
from scorer.dialects.rerank_parts import ranked_items, relevance_of, rerank_errors, rerank_request
from scorer.dialects.rerank_schema import Relevance, RerankError
from scorer.dialects.schema import PositiveInt, ScoreRequest
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch


class JinaRerankRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One query and its documents, each a text or an object with a `text`. Unknown fields are refused."""

    model: Annotated[str, Meta(description="Any name: there is one model.")]
    query: str | dict[str, Any]
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1)]
    top_n: Annotated[PositiveInt | None, Meta(description="Return this many. Default: all.")] = None
    return_documents: Annotated[bool | None, Meta(description="Repeat the document in each result (also null).")] = True


class JinaResult(Struct, frozen=True):
    index: Annotated[int, Meta(description="Place of the document in the request.")]
    relevance_score: Relevance
    document: Annotated[
        dict[str, Any] | UnsetType, Meta(description="`text`, and what else the document had in the request.")
    ] = UNSET


class JinaUsage(Struct, frozen=True):
    total_tokens: int
    prompt_tokens: int


class JinaRerankResponse(Struct, frozen=True):
    """Best first, ties by index. `errors` is there only if a document has no score."""

    model: str
    object: Literal["list"]
    usage: JinaUsage
    results: list[JinaResult]
    errors: list[RerankError] | UnsetType = UNSET


def jina_dialect() -> Dialect[JinaRerankRequest]:
    return Dialect(
        decode=StrictDecoder(JinaRerankRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=detail_error,
    )


def _to_request(spoken: JinaRerankRequest) -> ScoreRequest:
    documents = [_text(document, f"documents[{index}]") for index, document in enumerate(spoken.documents)]
    return rerank_request(_text(spoken.query, "query"), documents)


def _text(given: str | dict[str, Any], field: str) -> str:
    text = given if isinstance(given, str) else given.get("text")
    if not isinstance(text, str):
        raise InvalidValue(f"`{field}` must have a `text`: the model reads nothing else", field=f"{field}.text")
    return text


def _reply(spoken: JinaRerankRequest, batch: ScoredBatch) -> JinaRerankResponse:
    tokens = batch.usage.prompt_tokens
    return JinaRerankResponse(
        model=batch.model,
        object="list",
        usage=JinaUsage(total_tokens=tokens, prompt_tokens=tokens),
        results=[
            JinaResult(
                index=item.index,
                relevance_score=relevance_of(item),
                document=UNSET if spoken.return_documents is False else _object(spoken.documents[item.index]),
            )
            for item in ranked_items(batch, spoken.top_n)
        ],
        errors=rerank_errors(batch) or UNSET,
    )


def _object(document: str | dict[str, Any]) -> dict[str, Any]:
    return {"text": document} if isinstance(document, str) else document
