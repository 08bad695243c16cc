"""Templates: versioned data that says what text surrounds a query and a document.

A template is a list of pieces for each order of its slots. A piece is text with
placeholders: ``{query}`` is a slot (untrusted text is put there), ``{user_open}`` is a mark
(the chat format of the model says which text stands there), and the rest is literal text,
the only place where a special token can come from. It also says what is read at the end of
the prompt and how that becomes a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

SlotName: TypeAlias = Literal["system", "instruction", "labels", "query", "document", "options"]
MarkName: TypeAlias = Literal[
    "system_open", "system_close", "user_open", "user_close", "assistant_open", "assistant_close"
]
Order: TypeAlias = Literal["document_first", "query_first"]
Join: TypeAlias = Literal["joined", "piecewise"]
Condition: TypeAlias = Literal["system", "instruction", "chat", "plain"]
ReadoutKind: TypeAlias = Literal["labels", "likelihood"]
ScoreKind: TypeAlias = Literal["probability", "logit", "difference", "expected"]
Debias: TypeAlias = Literal["none", "reverse", "rotate"]
Listed: TypeAlias = Literal["options", "documents"]


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
        with_next: The piece and the one after it are tokenised as one text.
    """

    segments: tuple[Segment, ...]
    when: Condition | None = None
    with_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How the labels that were read become a score.

    Args:
        kind: ``probability`` of the positive label; its ``logit``; the ``difference`` between its
            logit and that of the only other label; ``expected``: the mean of ``values``, weighed
            by the probabilities of their labels.
        scale, offset: A logit or a difference ``x`` is ``sigmoid(scale * x + offset)`` on the
            scale of 0 to 1.
        values: What each label is worth; only for ``expected``.
    """

    kind: ScoreKind = "probability"
    scale: float = 1.0
    offset: float = 0.0
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Texts that stand in a prompt one after the other, each with the label that answers with it.

    Args:
        of: ``options`` of a query, or the ``documents`` of a set that are compared with each other.
        entry: Form of one text, with ``{label}`` and ``{text}``.
        compare: How many texts stand in one prompt; None: as many as there are.
    """

    of: Listed
    entry: str
    separator: str
    compare: int | None = None

    def render(self, labels: Sequence[str], texts: Sequence[str]) -> str:
        """The texts under the first labels, in order."""
        before, _, rest = self.entry.partition("{label}")
        between, _, after = rest.partition("{text}")
        return self.separator.join(
            f"{before}{label}{between}{text}{after}" for label, text in zip(labels, texts, strict=False)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelList:
    """How the labels are spelt out where the slot ``{labels}`` stands."""

    separator: str = ", "
    last_separator: str = " or "

    def render(self, labels: Sequence[str]) -> str:
        *others, last = labels
        return self.separator.join(others) + (self.last_separator if others else "") + last


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One version of one template, checked when it was read.

    Args:
        labels: Label strings, distinct; empty for likelihood. Of a template with a listing they
            are what the listed texts are called, so there are as many as texts may be.
        positive: The label whose probability is the score; None for likelihood and listings.
        scoring: How labels become a score.
        debias: Orders of labels or listed texts that are averaged where a request does not say.
        listing: Texts that are listed in the prompt; None: none.
        label_list: How labels are spelt out in the prompt.
        trim: White space at both ends of query and document is left out, as the publisher does.
        models: Patterns of names of models (as in shells, small letters) that are served with this
            template unless the operator names another one.
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
    scoring: Scoring
    debias: Debias
    listing: Listing | None
    label_list: LabelList
    trim: bool
    models: tuple[str, ...]
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

    @property
    def permutable(self) -> bool:
        """Whether the prompt spells out labels or texts whose order could sway the answer."""
        return self.listing is not None or self.has_slot("labels")

    def has_slot(self, name: SlotName) -> bool:
        """Whether a request may fill this slot; the same for every order."""
        return any(Slot(name) in piece.segments for pieces in self.layouts.values() for piece in pieces)
