"""What the dashboards and alerts ask of Prometheus, taken from their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

FOLDER = Path(__file__).parents[2] / "dashboards"
RUNBOOK_ROOT = FOLDER.parent

MACROS = {"$__rate_interval": "1m", "$job": ".+", "$instance": ".+", "$slo": "1.0"}
"""What Grafana puts in place of its variables, for a scrape interval of a second."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One expression and where it stands."""

    where: str
    expr: str

    def __str__(self) -> str:
        return self.where


def overview() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FOLDER / "overview.json").read_text(encoding="utf-8"))
    return board


def panels() -> list[dict[str, Any]]:
    return [panel for panel in overview()["panels"] if panel["type"] != "row"]


def panel_asks() -> list[Ask]:
    """Every target of every panel, as Grafana sends it."""
    return [
        Ask(f"{panel['title']} / {target['refId']}", expand(target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def rule_asks() -> list[Ask]:
    return [Ask(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def expand(expr: str) -> str:
    # longest first: $__rate_interval must not meet a shorter name that it begins with
    for macro in sorted(MACROS, key=len, reverse=True):
        expr = expr.replace(macro, MACROS[macro])
    return expr


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Every series selector of an expression, also those of ranges."""
    return [node for node in nodes(expr) if isinstance(node, promql_parser.VectorSelector)]


def bare_series(expr: str) -> set[str | None]:
    """Names of the series whose value is taken as it is, not over a range."""
    inside_range = {str(node.vector_selector) for node in nodes(expr) if isinstance(node, promql_parser.MatrixSelector)}
    return {selector.name for selector in selectors(expr) if str(selector) not in inside_range}


def ranges(expr: str) -> list[tuple[str, promql_parser.MatrixSelector]]:
    """Function and range of every call over a range."""
    calls = (node for node in nodes(expr) if isinstance(node, promql_parser.Call))
    return [
        (call.func.name, argument)
        for call in calls
        for argument in call.args
        if isinstance(argument, promql_parser.MatrixSelector)
    ]


def nodes(expr: str) -> list[promql_parser.Expr]:
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expr), found.append)
    return found


def family(series: str) -> str:
    """The metric that a series belongs to: a histogram has three series names."""
    for suffix in ("_bucket", "_sum", "_count"):
        series = series.removesuffix(suffix)
    return series
