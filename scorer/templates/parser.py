"""A TOML text to a template, with every rule that a template has to keep."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Literal, get_args

from scorer.templates.pieces import LayoutReader
from scorer.templates.readout import read_label_list, read_listing, read_readout
from scorer.templates.toml_table import TomlTable
from scorer.templates.types import Join, Order, Piece, Slot, Template, TemplateError, Text

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
    listing, label_list = read_listing(table), read_label_list(table)
    readout = read_readout(table.table("readout"), listing)
    orders = table.table("orders")
    join: Join = table.choice("join", get_args(Join))
    reader = LayoutReader(orders, readout=readout.kind, join=join, listing=listing)
    layouts = {order: reader.read(order) for order in _ORDERS if order in orders}
    orders.done()
    if not layouts:
        table.fail("orders", {}, f"one of {', '.join(_ORDERS)}")
    special_tokens = _read_special_tokens(table, layouts.values())
    template = Template(
        name=table.text("name"),
        version=table.integer("version", at_least=1),
        description=table.text("description"),
        readout=readout.kind,
        labels=readout.labels,
        positive=readout.positive,
        scoring=readout.scoring,
        debias=readout.debias,
        listing=listing,
        label_list=label_list,
        trim=table.boolean("trim", default=False),
        models=table.texts("models", default=()),
        join=join,
        special_tokens=special_tokens,
        instruction=_slot_text(table, "instruction", special_tokens),
        system=_slot_text(table, "system", special_tokens),
        layouts=layouts,
        source=source,
    )
    table.done()
    _check_name(table, template.name)
    _check_same_slots(table, template)
    if template.debias != "none" and not template.permutable:
        table.fail("readout.debias", template.debias, "none: the prompt spells out no labels and lists no texts")
    return template


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
