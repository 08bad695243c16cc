"""The part of a template file that says what is read, and how that becomes a score."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import get_args

from scorer.templates.toml_table import TomlTable
from scorer.templates.types import Debias, LabelList, Listed, Listing, ReadoutKind, ScoreKind, Scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReadout:
    """See the fields of :class:`scorer.templates.types.Template`."""

    kind: ReadoutKind
    labels: tuple[str, ...] = ()
    positive: str | None = None
    scoring: Scoring = field(default_factory=Scoring)
    debias: Debias = "none"


def read_readout(table: TomlTable, listing: Listing | None) -> TemplateReadout:
    """The table ``readout``.

    Raises:
        TemplateError: its values do not fit together.
    """
    kind: ReadoutKind = table.choice("kind", get_args(ReadoutKind))
    if kind == "likelihood":
        table.done()
        return TemplateReadout(kind=kind)
    labels = table.texts("labels")
    if not labels or "" in labels or len(set(labels)) < len(labels):
        table.fail("labels", list(labels), "at least one label, none empty, no two alike")
    scoring = _read_scoring(table, labels)
    has_positive = listing is None and scoring.kind != "expected"
    readout = TemplateReadout(
        kind=kind,
        labels=labels,
        positive=table.choice("positive", labels) if has_positive else None,
        scoring=scoring,
        debias=table.choice("debias", get_args(Debias), default="none"),
    )
    if listing is not None and scoring.kind != "probability":
        table.fail("score", scoring.kind, "probability: listed texts compete with each other")
    table.done()
    return readout


def read_listing(table: TomlTable) -> Listing | None:
    """The table ``listing``, if there is one."""
    if "listing" not in table:
        return None
    inner = table.table("listing")
    entry = inner.text("entry")
    if [name for _, name, _, _ in _fields(inner, entry) if name is not None] != ["label", "text"]:
        inner.fail("entry", entry, "{label} and then {text}, once each")
    listing = Listing(
        of=inner.choice("of", get_args(Listed)),
        entry=entry,
        separator=inner.text("separator"),
        compare=inner.integer("compare", at_least=2) if "compare" in inner else None,
    )
    if listing.compare is not None and listing.of == "options":
        inner.fail("compare", listing.compare, "no such key: options stand together")
    inner.done()
    return listing


def read_label_list(table: TomlTable) -> LabelList:
    """The table ``label_list``, or what holds without it."""
    if "label_list" not in table:
        return LabelList()
    inner = table.table("label_list")
    label_list = LabelList(separator=inner.text("separator"), last_separator=inner.text("last_separator"))
    inner.done()
    return label_list


def _read_scoring(table: TomlTable, labels: tuple[str, ...]) -> Scoring:
    kind: ScoreKind = table.choice("score", get_args(ScoreKind), default="probability")
    if kind == "expected":
        values = table.numbers("values")
        if len(values) != len(labels) or len(set(values)) < 2:
            table.fail("values", list(values), f"{len(labels)} numbers, one for each label, not all alike")
        return Scoring(kind=kind, values=values)
    if kind == "probability":
        return Scoring()
    if kind == "difference" and len(labels) != 2:
        table.fail("score", kind, f"two labels; there are {len(labels)}")
    scale = table.number("scale", default=1.0)
    if scale <= 0:
        table.fail("scale", scale, "a number above 0")
    return Scoring(kind=kind, scale=scale, offset=table.number("offset", default=0.0))


def _fields(table: TomlTable, entry: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(entry))
    except ValueError as error:
        table.fail("entry", entry, f"balanced braces ({error})")
