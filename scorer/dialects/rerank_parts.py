"""What the rerank-shaped dialects have in common: one query, documents, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine import DeadlineExceeded
from scorer.dialects.native import item_error
from scorer.dialects.ranking import best_items
from scorer.dialects.rerank_schema import RerankError, RerankText
from scorer.dialects.schema import ScoreRequest, TruncationSide
from scorer.errors import InvalidValue, NoFiniteScore
from scorer.scoring.batch import ItemFault, ScoredBatch, ScoredItem


def rerank_request(
    query: str | RerankText,
    documents: Sequence[str | RerankText],
    *,
    truncate: bool = True,
    truncation_side: TruncationSide = "right",
    max_tokens_per_doc: int | None = None,
    max_tokens_per_query: int | None = None,
    instruction: str | None = None,
    deadline_ms: int | None = None,
    request_id: str | None = None,
) -> ScoreRequest:
    """One query and its documents in native terms."""
    return ScoreRequest(
        queries=[text_of(query)],
        documents=[text_of(document) for document in documents],
        instruction=instruction,
        truncate="document" if truncate else "error",
        truncation_side=truncation_side,
        max_tokens_per_doc=max_tokens_per_doc,
        max_tokens_per_query=max_tokens_per_query,
        deadline_ms=deadline_ms,
        request_id=request_id,
    )


def ranked_items(
    batch: ScoredBatch, top_n: int | None, *, partial: bool = True, documents: str = "documents"
) -> list[ScoredItem]:
    """The documents that have a score, best first, ties by index.

    Args:
        partial: Whether the answer may lack documents; it must say which, then.
        documents: What the dialect calls them, for errors.

    Raises:
        InvalidValue: the query does not fit, or a document and the answer may lack none.
        DeadlineExceeded: the deadline passed before any document was scored, or before one that
            the answer may not lack.
        NoFiniteScore: likewise, of documents for which the model gave no number.
    """
    faults = batch.faults
    if len(faults) == len(batch.items) or (faults and not partial):
        _refuse(faults, documents)
    # the relevance rises with the score, but scores that differ may round to one relevance near 0 and 1
    return best_items(batch.items, top_n, by=lambda score: score.score)


def faulty_items(batch: ScoredBatch) -> list[tuple[int, ItemFault]]:
    """Documents without a score: index and reason."""
    return [(item.index, item.result) for item in batch.items if isinstance(item.result, ItemFault)]


def rerank_errors(batch: ScoredBatch) -> list[RerankError]:
    """What object-shaped answers list under ``errors``, an addition of ours that clients do not stumble over."""
    return [RerankError(index=index, error=item_error(fault)) for index, fault in faulty_items(batch)]


def relevance_of(item: ScoredItem) -> float:
    """The score of a ranked document on a scale of 0 to 1."""
    assert item.score is not None, "only documents with a score are ranked"
    return item.score.relevance


def raw_score_of(item: ScoredItem) -> float:
    """Log-odds of the relevance of a ranked document."""
    return log_odds(relevance_of(item))


def log_odds(relevance: float) -> float:
    """The number whose sigmoid it is; at most ±16, which is as far as seven digits tell."""
    bounded = min(max(relevance, _LEAST), 1.0 - _LEAST)
    return round(math.log(bounded) - math.log1p(-bounded), 6)


_LEAST = 1e-7


def text_of(text: str | RerankText) -> str:
    return text if isinstance(text, str) else text.text


def _refuse(faults: Sequence[ItemFault], documents: str) -> None:
    """Raise what the caller should look at first."""
    for fault in faults:
        if fault.outcome == "invalid":
            field = None if fault.field is None else fault.field.replace("documents", documents, 1)
            field = "query" if field == "queries[0]" else field
            raise InvalidValue(fault.message, field=field, value=fault.value, limit=fault.limit)
    if any(fault.outcome == "deadline" for fault in faults):
        raise DeadlineExceeded("the deadline passed before all documents were scored")
    raise NoFiniteScore("the model gave NaN or infinity for a document")
