"""Templates: versioned data that says what text surrounds a query and a document.

A template is a list of pieces for each order of its slots. A piece is text with
placeholders: ``{query}`` is a slot (untrusted text is put there), ``{user_open}`` is a mark
(the chat format of the model says which text stands there), and the rest is literal text,
the only place where a special token can come from.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from scorer.toml_table import TomlTable

SlotName: TypeAlias = Literal["system", "instruction", "query", "document"]
MarkName: TypeAlias = Literal[
    "system_open", "system_close", "user_open", "user_close", "assistant_open", "assistant_close"
]
Order: TypeAlias = Literal["document_first", "query_first"]
Join: TypeAlias = Literal["joined", "piecewise"]
Condition: TypeAlias = Literal["system", "instruction", "chat", "plain"]
ReadoutKind: TypeAlias = Literal["labels", "likelihood"]

DEFAULT_TEMPLATE = "query-likelihood@1"
"""What ranks with a model that was not trained as a reranker."""

_SLOTS: tuple[SlotName, ...] = get_args(SlotName)
_MARKS: tuple[MarkName, ...] = get_args(MarkName)
_ORDERS: tuple[Order, ...] = get_args(Order)


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


def builtin_templates() -> list[Template]:
    """The templates that come with the package, by name and then version."""
    folder = resources.files("scorer") / "template_files"
    read = [
        parse_template(entry.read_text(encoding="utf-8"), source=entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    ]
    return sorted(read, key=lambda template: (template.name, template.version))


def find_template(name: str) -> Template:
    """The template called ``name``, ``name@version`` (no version: the newest) or ``*.toml`` (a file's path).

    Raises:
        TemplateError: there is no such template, or the file is not a template.
    """
    if name.endswith(".toml"):
        return read_template(Path(name))
    known = builtin_templates()
    found = [template for template in known if name in (template.name, template.id)]
    if not found:
        raise TemplateError(
            f"no template is called {name!r}; there are {', '.join(template.id for template in known)}, "
            f"and a path that ends in .toml names a file of your own"
        )
    return found[-1]


def read_template(path: Path) -> Template:
    """The template in a file.

    Raises:
        TemplateError: the file cannot be read or is not a template.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{path}: cannot be read: {error}") from error
    return parse_template(content, source=str(path))


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
    special_tokens = table.texts("special_tokens", default=())
    readout, labels, positive = _read_readout(table.table("readout"))
    orders = table.table("orders")
    layouts = {order: _read_layout(orders, order, readout) for order in _ORDERS if order in orders}
    orders.done()
    if not layouts:
        table.fail("orders", {}, f"one of {', '.join(_ORDERS)}")
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


def _segments(orders: TomlTable, order: Order, text: str) -> Iterator[Segment]:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        orders.fail(order, text, f"balanced braces; {{{{ and }}}} stand for braces in the text ({error})")
    slots = {name: Slot(name) for name in _SLOTS}
    marks = {name: Mark(name) for name in _MARKS}
    for literal, name, spec, conversion in fields:
        if literal:
            yield Text(literal)
        if name is None:
            continue
        segment = slots.get(name) or marks.get(name)  # type: ignore[call-overload]  # any text may be looked up
        if segment is None or spec or conversion:
            orders.fail(order, f"{{{name}}}", f"a slot ({', '.join(_SLOTS)}) or a mark ({', '.join(_MARKS)})")
        yield segment


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
