"""What is scored without a template: prompts of the caller's own, labels by their token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

TextOrIds: TypeAlias = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptRequest:
    """One query and its items, one prompt each.

    Args:
        labels: Lists of token ids: one for all items, or one for each.
        normalise: What the probabilities of the labels are shares of.
        item_first: An item stands before the query, not behind it.
        joined: A query and an item that are both texts are tokenised as one; otherwise each alone.
        lead: Put before a text what the published tokenizer puts there, such as BOS.
        cut: Cut a prompt that does not fit at its end; otherwise it is refused.
    """

    model: str | None
    query: TextOrIds
    items: Sequence[TextOrIds]
    labels: Sequence[Sequence[int]]
    normalise: Literal["labels", "vocabulary"]
    temperature: float = 1.0
    item_first: bool = False
    joined: bool = False
    lead: bool = True
    cut: bool = False
    request_id: str | None = None
    deadline_ms: int | None = None
