"""Templates: versioned data that says what text surrounds a query and a document.

A template is a list of pieces for each order of its slots. A piece is text with
placeholders: ``{query}`` is a slot (untrusted text is put there), ``{user_open}`` is a mark
(the chat format of the model says which text stands there), and the rest is literal text,
the only place where a special token can come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

SlotName: TypeAlias = Literal["system", "instruction", "query", "document"]
MarkName: TypeAlias = Literal[
    "system_open", "system_close", "user_open", "user_close", "assistant_open", "assistant_close"
]
Order: TypeAlias = Literal["document_first", "query_first"]
Join: TypeAlias = Literal["joined", "piecewise"]
Condition: TypeAlias = Literal["system", "instruction", "chat", "plain"]
ReadoutKind: TypeAlias = Literal["labels", "likelihood"]


class TemplateError(ValueError):
    """A template cannot be used; the message names the file, the key and the value."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text: trusted, and the only text that may spell a special token."""

    text: str


@dataclass(frozen=True, slots=True)
class Slot:
    """Where text of a request is put. No special token can come from it."""

    name: SlotName


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the chat format opens or closes a turn."""

    name: MarkName


Segment: TypeAlias = Text | Slot | Mark


@dataclass(frozen=True, slots=True)
class Piece:
    """Segments that are tokenised as one text even under the piecewise rule.

    Args:
        when: What must hold for the piece to be there: a system text or an instruction is
            given, or the chat format has turns (``chat``) or has none (``plain``).
    """

    segments: tuple[Segment, ...]
    when: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One version of one template, checked when it was read.

    Args:
        labels: Label strings, distinct; empty for likelihood.
        positive: The label whose probability is the score; None for likelihood.
        join: ``joined``: text between two special tokens is tokenised as one.
            ``piecewise``: every piece is tokenised alone.
        special_tokens: What literals may name beside the special tokens of the chat format.
        instruction: Used where a request gives none.
        system: Used where a request gives none.
        layouts: The pieces for each order that the template has, at least one.
        source: File it came from, for messages.
    """

    name: str
    version: int
    description: str
    readout: ReadoutKind
    labels: tuple[str, ...]
    positive: str | None
    join: Join
    special_tokens: tuple[str, ...]
    instruction: str
    system: str
    layouts: Mapping[Order, tuple[Piece, ...]]
    source: str

    @property
    def id(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(self.layouts)

    def has_slot(self, name: SlotName) -> bool:
        """Whether a request may fill this slot; the same for every order."""
        return any(Slot(name) in piece.segments for pieces in self.layouts.values() for piece in pieces)
