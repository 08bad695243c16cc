"""The texts of a prompt, once the texts that all pairs of a request share are in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct

from scorer.templates.layout import LayoutPart, SpecialToken, TextRun
from scorer.templates.types import Order, SlotName, Text
from scorer.tokens.text_tokens import TextPiece

PairSlot: TypeAlias = Literal["query", "document", "options"]
_PAIR_SLOTS: tuple[PairSlot, ...] = get_args(PairSlot)


class PairTexts(NamedTuple):
    """What fills the slots of one pair."""

    query: str
    document: str
    options: str = ""


class RenderedText(Struct, frozen=True, eq=False, gc=False):
    """A text of a pair, and where its slots lie in it, as characters ``[start, end)``."""

    piece: TextPiece
    slots: dict[PairSlot, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class PairText:
    """A text with a place for one or more texts of the pair.

    Args:
        segments: Literals, and the names of slots.
        tracked: The slot whose first token is to be found: the one that comes last.
    """

    segments: tuple[Text | PairSlot, ...]
    starts_text: bool
    tracked: PairSlot

    @property
    def slots(self) -> list[PairSlot]:
        return [segment for segment in self.segments if not isinstance(segment, Text)]

    def render(self, filling: PairTexts) -> RenderedText:
        slots: dict[PairSlot, tuple[int, int]] = {}
        texts: list[str] = []
        length = 0
        for segment in self.segments:
            if isinstance(segment, Text):
                text = segment.text
            else:
                text = getattr(filling, segment)
                slots[segment] = (length, length + len(text))
            texts.append(text)
            length += len(text)
        slot_at = slots[self.tracked][0] if self.tracked in slots else 0
        return RenderedText(TextPiece("".join(texts), slot_at, self.starts_text), slots)


FilledPart: TypeAlias = SpecialToken | TextPiece | PairText
"""A special token, a text that all pairs share, or a text of the pair's own."""


def fill_layout(parts: Sequence[LayoutPart], *, order: Order, shared: Mapping[SlotName, str]) -> tuple[FilledPart, ...]:
    """The parts of a layout with the texts that all pairs share put in."""
    tracked: PairSlot = "query" if order == "document_first" else "document"
    return tuple(_fill(part, shared, tracked) for part in parts)


def _fill(part: LayoutPart, shared: Mapping[SlotName, str], tracked: PairSlot) -> FilledPart:
    if isinstance(part, SpecialToken):
        return part
    segments = tuple(_segments(part, shared))
    if all(isinstance(segment, Text) for segment in segments):
        text = "".join(segment.text for segment in segments if isinstance(segment, Text))
        return TextPiece(text, 0, part.starts_text)
    return PairText(segments, part.starts_text, tracked)


def _segments(run: TextRun, shared: Mapping[SlotName, str]) -> Iterator[Text | PairSlot]:
    for segment in run.segments:
        if isinstance(segment, Text):
            yield segment
        elif segment.name in shared:
            yield Text(shared[segment.name])
        else:
            yield _PAIR_SLOTS[_PAIR_SLOTS.index(segment.name)]
