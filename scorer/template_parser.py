"""A TOML text to a template, with every rule that a template has to keep."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from scorer.template_types import (
    Condition,
    Join,
    Mark,
    MarkName,
    Order,
    Piece,
    ReadoutKind,
    Segment,
    Slot,
    SlotName,
    Template,
    TemplateError,
    Text,
)
from scorer.toml_table import TomlTable

_SLOTS: tuple[SlotName, ...] = get_args(SlotName)
_MARKS: tuple[MarkName, ...] = get_args(MarkName)
_ORDERS: tuple[Order, ...] = get_args(Order)


def parse_template(content: str, *, source: str) -> Template:
    """The template that a TOML text describes.

    Raises:
        TemplateError: it is not TOML, a key is unknown, missing or of the wrong type, or the
            values do not make a template.
    """
    try:
        table = TomlTable(tomllib.loads(content), source=source, error=TemplateError)
    except tomllib.TOMLDecodeError as error:
        raise TemplateError(f"{source}: not TOML: {error}") from error
    readout, labels, positive = _read_readout(table.table("readout"))
    orders = table.table("orders")
    layouts = {order: _read_layout(orders, order, readout) for order in _ORDERS if order in orders}
    orders.done()
    if not layouts:
        table.fail("orders", {}, f"one of {', '.join(_ORDERS)}")
    special_tokens = _read_special_tokens(table, layouts.values())
    template = Template(
        name=table.text("name"),
        version=table.integer("version", at_least=1),
        description=table.text("description"),
        readout=readout,
        labels=labels,
        positive=positive,
        join=table.choice("join", get_args(Join)),
        special_tokens=special_tokens,
        instruction=_slot_text(table, "instruction", special_tokens),
        system=_slot_text(table, "system", special_tokens),
        layouts=layouts,
        source=source,
    )
    table.done()
    _check_name(table, template.name)
    _check_same_slots(table, template)
    return template


def _read_readout(table: TomlTable) -> tuple[ReadoutKind, tuple[str, ...], str | None]:
    kind: ReadoutKind = table.choice("kind", get_args(ReadoutKind))
    labels: tuple[str, ...] = ()
    positive = None
    if kind == "labels":
        labels = table.texts("labels")
        if not labels or "" in labels or len(set(labels)) < len(labels):
            table.fail("labels", list(labels), "at least one label, none empty, no two alike")
        positive = table.choice("positive", labels)
    table.done()
    return kind, labels, positive


def _read_layout(orders: TomlTable, order: Order, readout: ReadoutKind) -> tuple[Piece, ...]:
    pieces = tuple(_read_piece(orders, order, entry) for entry in orders.entries(order))
    segments = [segment for piece in pieces for segment in piece.segments]
    slots = [segment.name for segment in segments if isinstance(segment, Slot)]
    for name in _SLOTS:
        if slots.count(name) > 1 or (name in ("query", "document") and name not in slots):
            orders.fail(order, slots, f"{{query}} and {{document}} once each and no slot twice; {{{name}}} is at fault")
    _check_slots_always_there(orders, order, pieces)
    if (slots.index("document") < slots.index("query")) != (order == "document_first"):
        orders.fail(order, slots, "the slots in the order that the key says")
    if readout == "likelihood" and segments[-1] != Slot("query"):
        orders.fail(order, slots, "{query} at the very end: its likelihood is the score")
    if readout == "labels" and isinstance(segments[-1], Slot):
        orders.fail(order, slots, "text after the last slot: the label is read there")
    return pieces


def _check_slots_always_there(orders: TomlTable, order: Order, pieces: tuple[Piece, ...]) -> None:
    """A text of a request must never be dropped in silence because a piece was left out."""
    for piece in pieces:
        for segment in piece.segments:
            if isinstance(segment, Slot) and piece.when not in (None, segment.name):
                orders.fail(order, piece.when, f"{{{segment.name}}} in a piece that does not depend on something else")


def _read_piece(orders: TomlTable, order: Order, entry: str | TomlTable) -> Piece:
    if isinstance(entry, str):
        return Piece(tuple(_segments(orders, order, entry)))
    conditions: tuple[Condition, ...] = get_args(Condition)
    piece = Piece(tuple(_segments(orders, order, entry.text("text"))), entry.choice("when", conditions))
    entry.done()
    return piece


def _segments(orders: TomlTable, order: Order, piece: str) -> Iterator[Segment]:
    try:
        fields = list(string.Formatter().parse(piece))
    except ValueError as error:
        orders.fail(order, piece, f"balanced braces; {{{{ and }}}} stand for braces in the text ({error})")
    slots = {name: Slot(name) for name in _SLOTS}
    marks = {name: Mark(name) for name in _MARKS}
    text = ""
    for literal, name, spec, conversion in fields:
        text += literal  # an escaped brace ends a field without a name
        if name is None:
            continue
        if text:
            yield Text(text)
            text = ""
        segment = slots.get(name) or marks.get(name)  # type: ignore[call-overload]  # any text may be looked up
        if segment is None or spec or conversion:
            orders.fail(order, f"{{{name}}}", f"a slot ({', '.join(_SLOTS)}) or a mark ({', '.join(_MARKS)})")
        yield segment
    if text:
        yield Text(text)


def _read_special_tokens(table: TomlTable, layouts: Iterable[tuple[Piece, ...]]) -> tuple[str, ...]:
    special_tokens = table.texts("special_tokens", default=())
    literals = [
        segment.text
        for pieces in layouts
        for piece in pieces
        for segment in piece.segments
        if isinstance(segment, Text)
    ]
    for token in special_tokens:
        if not token or not any(token in literal for literal in literals):
            table.fail("special_tokens", token, "only tokens that are named in a literal")
    return special_tokens


def _slot_text(table: TomlTable, key: Literal["instruction", "system"], special_tokens: tuple[str, ...]) -> str:
    text = table.text(key, default="")
    for token in special_tokens:
        if token in text:
            table.fail(key, text, f"no special token in the text of a slot; {token} belongs in a literal")
    return text


def _check_name(table: TomlTable, name: str) -> None:
    if not name or not all(character.islower() or character.isdigit() or character == "-" for character in name):
        table.fail("name", name, "lower-case letters, digits and hyphens")


def _check_same_slots(table: TomlTable, template: Template) -> None:
    filled = {
        order: {segment for piece in pieces for segment in piece.segments if isinstance(segment, Slot)}
        for order, pieces in template.layouts.items()
    }
    if len(set(map(frozenset, filled.values()))) > 1:
        table.fail("orders", list(filled), "the same slots in every order")
    for name in ("instruction", "system"):
        text = template.instruction if name == "instruction" else template.system
        if text and not template.has_slot("instruction" if name == "instruction" else "system"):
            table.fail(name, text, f"no default text: the template has no slot {{{name}}}")
