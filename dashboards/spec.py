"""What a panel is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["bytes", "none", "percentunit", "reqps", "s", "short", "si:pairs/s", "si:tok/s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """From ``value`` upwards (None: from minus infinity) the panel has this colour."""

    value: float | None
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSpec:
    """One panel.

    Args:
        description: The question it answers, and how to read it.
        width: Of 24 columns.
        names: Texts shown in place of values.
        colours: Of series by their legend; the others take theirs from the palette.
        no_value: Shown where the query has no result; a share without traffic has none.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Literal["stat", "lines", "stacked", "name"] = "lines"
    width: int = 8
    max_value: float | None = None
    thresholds: tuple[Threshold, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    colours: tuple[tuple[str, str], ...] = ()
    no_value: str = "no data"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    title: str
    panels: tuple[PanelSpec, ...]
