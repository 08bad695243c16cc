"""The pieces of a template file: text with placeholders for slots and for marks of the chat format."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import get_args

from scorer.templates.toml_table import TomlTable
from scorer.templates.types import (
    Condition,
    Join,
    Listing,
    Mark,
    MarkName,
    Order,
    Piece,
    ReadoutKind,
    Segment,
    Slot,
    SlotName,
    Text,
)

_SLOTS: tuple[SlotName, ...] = get_args(SlotName)
_MARKS: tuple[MarkName, ...] = get_args(MarkName)
_NEEDED: frozenset[SlotName] = frozenset({"query", "document", "options"})


class LayoutReader:
    """Reads the pieces of each order, and holds them against the readout and the listing."""

    def __init__(self, orders: TomlTable, *, readout: ReadoutKind, join: Join, listing: Listing | None) -> None:
        self._orders = orders
        self._readout = readout
        self._join = join
        of_documents = listing is not None and listing.of == "documents"
        document = "documents" if of_documents else "document"
        self._slots: dict[str, Slot] = {
            document if name == "document" else name: Slot(name)
            for name in _SLOTS
            if name != "options" or (listing is not None and listing.of == "options")
            if name != "labels" or readout == "labels"
        }
        """Slots by the names that they have in this file."""

    def read(self, order: Order) -> tuple[Piece, ...]:
        pieces = tuple(self._piece(order, entry) for entry in self._orders.entries(order))
        segments = [segment for piece in pieces for segment in piece.segments]
        slots = [segment.name for segment in segments if isinstance(segment, Slot)]
        for name, slot in self._slots.items():
            if slots.count(slot.name) > 1 or (slot.name in _NEEDED and slot.name not in slots):
                wanted = ", ".join(f"{{{each}}}" for each, one in self._slots.items() if one.name in _NEEDED)
                self._orders.fail(order, slots, f"{wanted} once each and no slot twice; {{{name}}} is at fault")
        self._check_slots_always_there(order, pieces)
        if (slots.index("document") < slots.index("query")) != (order == "document_first"):
            self._orders.fail(order, slots, "the slots in the order that the key says")
        if self._readout == "likelihood" and segments[-1] != Slot("query"):
            self._orders.fail(order, slots, "{query} at the very end: its likelihood is the score")
        # under the piecewise rule a label is tokenised alone, whatever stands before it
        if self._readout == "labels" and self._join == "joined" and isinstance(segments[-1], Slot):
            self._orders.fail(order, slots, "text after the last slot: the label is read there")
        if pieces[-1].with_next:
            self._orders.fail(order, "with_next", "a piece after the one that is joined with the next")
        return pieces

    def _check_slots_always_there(self, order: Order, pieces: tuple[Piece, ...]) -> None:
        """A text of a request must never be dropped in silence because a piece was left out."""
        for piece in pieces:
            for segment in piece.segments:
                if isinstance(segment, Slot) and piece.when not in (None, segment.name):
                    wanted = f"{{{segment.name}}} in a piece that does not depend on something else"
                    self._orders.fail(order, piece.when, wanted)

    def _piece(self, order: Order, entry: str | TomlTable) -> Piece:
        if isinstance(entry, str):
            return Piece(tuple(self._segments(order, entry)))
        conditions: tuple[Condition, ...] = get_args(Condition)
        with_next = entry.boolean("with_next", default=False)
        when = entry.choice("when", conditions) if "when" in entry or not with_next else None
        piece = Piece(tuple(self._segments(order, entry.text("text"))), when, with_next)
        entry.done()
        return piece

    def _segments(self, order: Order, piece: str) -> Iterator[Segment]:
        try:
            fields = list(string.Formatter().parse(piece))
        except ValueError as error:
            self._orders.fail(order, piece, f"balanced braces; {{{{ and }}}} stand for braces in the text ({error})")
        marks = {name: Mark(name) for name in _MARKS}
        text = ""
        for literal, name, spec, conversion in fields:
            text += literal  # an escaped brace ends a field without a name
            if name is None:
                continue
            if text:
                yield Text(text)
                text = ""
            segment = self._slots.get(name) or marks.get(name)  # type: ignore[call-overload]  # any text may be looked up
            if segment is None or spec or conversion:
                known = f"a slot ({', '.join(self._slots)}) or a mark ({', '.join(_MARKS)})"
                self._orders.fail(order, f"{{{name}}}", known)
            yield segment
        if text:
            yield Text(text)
