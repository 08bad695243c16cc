"""How a pair is scored where one prompt is not enough: orders, parts of a document, comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Part(NamedTuple):
    """One prompt of a batch, and which of its labels speaks of the pair.

    Args:
        prompt: Index into the prompts of the batch; several pairs may read the same prompt.
        positive: Index of the label; None: the one of the readout.
    """

    prompt: int
    positive: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """The prompts of one pair.

    Args:
        chunks: For each part of the document, the prompts whose scores are averaged. Documents that
            are compared with each other have one chunk, with ``num_orders`` prompts for each comparison.
        num_orders: Orders of the labels; the prompts of a chunk go through them.
        combine: The score of the document: that of its best chunk, or their mean.
        content_free: The same prompts over a document that says nothing, one for each order;
            empty: none.
        cut_tokens: Cut from the document before the prompts were built.
    """

    chunks: tuple[tuple[Part, ...], ...]
    num_orders: int = 1
    combine: Literal["max", "mean"] = "max"
    content_free: tuple[Part, ...] = ()
    cut_tokens: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*(part for chunk in self.chunks for part in chunk), *self.content_free)
