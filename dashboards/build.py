"""Write ``overview.json`` from ``dashboards.panels``: ``python -m dashboards.build``.

Built with Grafana's own typed builders. Three of their habits are corrected here: they leave
the ids of panels and the letters of targets empty, and add to each variable the ``auto*`` keys
that belong to interval variables alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from dashboards.panels import OVERVIEW
from dashboards.spec import PanelSpec, RowSpec

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
OBJECTIVES_S = ("0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0")
"""Choices of the latency objective, spelt as the ``le`` label spells the edge."""

DEFAULT_OBJECTIVE_S = "1.0"


def overview() -> dict[str, Any]:
    """The overview dashboard as Grafana imports it."""
    board = (
        builders.Dashboard("Scorer overview")
        .uid("radix-scorer-overview")
        .description("Scoring with prefix reuse: what is saved, how fast it answers, what fails, and what fills up.")
        .tags(["radix-scorer"])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
    )
    for variable in _variables():
        board.with_variable(variable)
    for row in OVERVIEW:
        _add_row(board, row)
    return _corrected(json.loads(json.dumps(board.build(), cls=JSONEncoder)))


def render() -> str:
    """``overview.json`` as text, in the form that is committed."""
    return json.dumps(overview(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _variables() -> list[builders.DatasourceVariable | builders.QueryVariable | builders.CustomVariable]:
    return [
        builders.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _label_variable("job", "Job", "label_values(scorer_tasks_total, job)"),
        _label_variable("instance", "Instance", 'label_values(scorer_tasks_total{job=~"$job"}, instance)'),
        builders.CustomVariable("slo")
        .label("Latency objective (s)")
        .values(", ".join(OBJECTIVES_S))
        .current(dashboard.VariableOption(selected=True, text=DEFAULT_OBJECTIVE_S, value=DEFAULT_OBJECTIVE_S))
        .options(
            [
                dashboard.VariableOption(selected=edge == DEFAULT_OBJECTIVE_S, text=edge, value=edge)
                for edge in OBJECTIVES_S
            ]
        ),
    ]


def _label_variable(name: str, label: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .query({"query": query, "refId": name})
        .datasource(DATASOURCE)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def _add_row(board: builders.Dashboard, row: RowSpec) -> None:
    board.with_row(builders.Row(row.title))
    for spec in row.panels:
        board.with_panel(_lines(spec) if spec.kind in {"lines", "stacked"} else _stat(spec))


def _lines(spec: PanelSpec) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .height(8)
        .line_width(1)
        .fill_opacity(30 if spec.kind == "stacked" else 8)
        .show_points(common.VisibilityMode.NEVER)
        .axis_soft_min(0)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if spec.kind == "stacked":
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    _describe(panel, spec)
    return panel


def _stat(spec: PanelSpec) -> stat.Panel:
    panel = (
        stat.Panel()
        .height(8 if spec.kind == "name" else 4)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if spec.kind == "name":
        panel.text_mode(common.BigValueTextMode.NAME).color_mode(common.BigValueColorMode.NONE)
    if spec.names:
        results = {
            value: dashboard.ValueMappingResult(text=text, index=i) for i, (value, text) in enumerate(spec.names)
        }
        panel.mappings([dashboard.ValueMap(options=results)])
    _describe(panel, spec)
    return panel


def _describe(panel: timeseries.Panel | stat.Panel, spec: PanelSpec) -> None:
    """What panels of every kind have."""
    steps = [dashboard.Threshold(value=step.value, color=step.color) for step in spec.thresholds]
    panel.title(spec.title).description(spec.description).unit(spec.unit).span(spec.width).datasource(DATASOURCE)
    panel.no_value(spec.no_value).min(0)
    panel.thresholds(
        builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps(steps or [dashboard.Threshold(value=None, color="text" if spec.kind == "stat" else "green")])
    )
    for legend, colour in spec.colours:
        fixed = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_name(legend, [dashboard.DynamicConfigValue(id_val="color", value=fixed)])
    if spec.max_value is not None:
        panel.max(spec.max_value)
    for position, query in enumerate(spec.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).datasource(DATASOURCE)
        target.ref_id(chr(ord("A") + position))
        panel.with_target(target.instant() if spec.kind == "name" else target.range())


def _corrected(board: dict[str, Any]) -> dict[str, Any]:
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    for variable in board["templating"]["list"]:
        for key in ("auto", "auto_count", "auto_min"):
            variable.pop(key, None)
    return board


if __name__ == "__main__":
    Path(__file__).with_name("overview.json").write_text(render(), encoding="utf-8")
