"""What the score-shaped dialects have in common: a score for every pair, in order, or none at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from engine import DeadlineExceeded
from scorer.errors import InvalidValue, NoFiniteScore
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.scores import ItemScore

Salt: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
GivenId: TypeAlias = Annotated[str, Meta(max_length=1024)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Prompts: TypeAlias = list[str | list[TokenId]]
"""All texts or all token ids; the decoder cannot tell that, :func:`check_alike` does."""


class CachedTokens(Struct, frozen=True):
    cached_tokens: Annotated[int, Meta(description="In the cache before this request.")]


class ScoreUsage(Struct, frozen=True):
    """Tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: None = None


def score_usage(batch: ScoredBatch) -> ScoreUsage:
    stats = batch.usage
    return ScoreUsage(
        prompt_tokens=stats.prompt_tokens,
        total_tokens=stats.prompt_tokens,
        completion_tokens=0,
        prompt_tokens_details=CachedTokens(cached_tokens=stats.cached_tokens),
    )


def all_scores(batch: ScoredBatch, *, queries: str, documents: str, one_document: bool = False) -> list[ItemScore]:
    """The score of every pair, in order: for dialects that have no place for a pair without one.

    Args:
        queries, documents: What the dialect calls them, for errors.
        one_document: It has no list of them.

    Raises:
        InvalidValue: a text does not fit, or is empty where it must not be.
        DeadlineExceeded: the deadline passed before all pairs were scored.
        NoFiniteScore: the model gave no number for a pair.
    """
    faults = batch.faults
    for fault in faults:
        if fault.outcome == "invalid":
            field = _renamed(fault.field, {"queries": queries, "documents": documents})
            field = documents if one_document and fault.field == "documents[0]" else field
            raise InvalidValue(fault.message, field=field, value=fault.value, limit=fault.limit)
    if any(fault.outcome == "deadline" for fault in faults):
        raise DeadlineExceeded("the deadline passed before everything was scored")
    if faults:
        raise NoFiniteScore("the model gave NaN or infinity for a prompt")
    return [item.result for item in batch.items if isinstance(item.result, ItemScore)]


def probabilities_of(score: ItemScore) -> list[float]:
    """Those of the labels of a prompt without a template, in their order."""
    assert score.probabilities is not None, "such a prompt is read by labels that are answers of their own"
    return score.probabilities


def _renamed(field: str | None, names: dict[str, str]) -> str | None:
    if field is None:
        return None
    name, bracket, rest = field.partition("[")
    return names.get(name, name) + bracket + rest


def check_alike(given: Sequence[object], field: str) -> None:
    """Check that all entries of a list are lists, or none.

    Raises:
        InvalidValue: they are mixed.
    """
    kinds = [isinstance(each, list) for each in given]
    if any(kinds) and not all(kinds):
        index = kinds.index(not kinds[0])
        raise InvalidValue("lists and other values must not be mixed", field=f"{field}[{index}]")


def refuse_priority(priority: int) -> None:
    """Requests are served in order of arrival.

    Raises:
        InvalidValue: another order is asked for.
    """
    if priority != 0:
        raise InvalidValue(
            f"priority is {priority}; requests are served in order of arrival", field="priority", limit=0
        )
