"""The overview: equal to its builder, about the metrics there are, and readable by an operator.

The lint rules follow what Grafana's dashboard linter asks of a dashboard.
"""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest
from prometheus_client import Metric

from dashboards import build
from scorer.metrics import LATENCY_BUCKETS_S
from tests.dashboards.promql import (
    FOLDER,
    Ask,
    bare_series,
    expand,
    family,
    overview,
    panel_asks,
    panels,
    ranges,
    selectors,
)

PANELS = [pytest.param(panel, id=panel["title"]) for panel in panels()]
ASKS = [pytest.param(ask, id=str(ask)) for ask in panel_asks()]

FROM_PROMETHEUS = {"up"}
KNOWN_UNITS = {"bytes", "none", "percentunit", "reqps", "s", "short"}


def variables() -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in overview()["templating"]["list"]}


def used_families() -> set[str]:
    return {family(selector.name or "") for ask in panel_asks() for selector in selectors(ask.expr)}


def test_file_is_what_the_builder_writes() -> None:
    committed = (FOLDER / "overview.json").read_text(encoding="utf-8")

    assert committed == build.render(), "run: make dashboards"


def test_every_metric_is_on_the_overview(families: dict[str, Metric]) -> None:
    # limits and addresses of the process, and what the restart alert reads
    not_shown = {"process_virtual_memory_bytes", "process_max_fds", "process_start_time_seconds"}

    assert set(families) - used_families() == not_shown


def test_every_metric_on_the_overview_exists(families: dict[str, Metric]) -> None:
    assert used_families() - FROM_PROMETHEUS - set(families) == set()


@pytest.mark.parametrize("ask", ASKS)
def test_labels_and_values_exist(ask: Ask, families: dict[str, Metric]) -> None:
    for selector in selectors(ask.expr):
        if selector.name in FROM_PROMETHEUS:
            continue
        samples = [s for s in families[family(selector.name or "")].samples if s.name == selector.name]
        assert samples, f"no series {selector.name}"
        for matcher in selector.matchers.matchers:
            if matcher.name not in {"job", "instance"}:
                assert all(matcher.name in sample.labels for sample in samples)
            if matcher.op == promql_parser.MatchOp.Equal:
                assert any(sample.labels.get(matcher.name) == matcher.value for sample in samples), str(matcher)


def test_json_names_what_grafana_needs() -> None:
    board = overview()

    assert board["uid"]
    assert board["title"]
    assert board["schemaVersion"] >= 39
    assert board["editable"] is False
    assert "id" not in board


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in overview()["panels"]]

    assert ids == list(range(1, len(ids) + 1))


@pytest.mark.parametrize("panel", PANELS)
def test_targets_are_lettered_in_order(panel: dict[str, Any]) -> None:
    letters = [target["refId"] for target in panel["targets"]]

    assert letters
    assert letters == [chr(ord("A") + position) for position in range(len(letters))]


def test_panels_neither_overlap_nor_leave_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in overview()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_variables_choose_source_job_instance_and_objective() -> None:
    found = variables()

    assert set(found) == {"datasource", "job", "instance", "slo"}
    assert found["datasource"]["type"] == "datasource"
    assert found["datasource"]["query"] == "prometheus"
    for name in ("job", "instance"):
        assert found[name]["type"] == "query"
        assert found[name]["datasource"]["uid"] == "${datasource}"
        assert found[name]["refresh"] == 2, "reload when the time range changes"
        assert found[name]["multi"] is True
        assert found[name]["includeAll"] is True
    assert not [name for name, variable in found.items() if {"auto", "auto_count", "auto_min"} & set(variable)]


def test_every_objective_is_an_edge_of_the_latency_histograms(families: dict[str, Metric]) -> None:
    choices = [option["value"] for option in variables()["slo"]["options"]]
    edges = {
        sample.labels["le"]
        for sample in families["scorer_request_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    }

    assert set(choices) <= edges
    assert {float(choice) for choice in choices} == {edge for edge in LATENCY_BUCKETS_S if edge >= 0.05}
    assert variables()["slo"]["current"]["value"] in choices


@pytest.mark.parametrize("panel", PANELS)
def test_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].count("?") >= 1, "the question that it answers"
    assert panel["fieldConfig"]["defaults"]["noValue"]


@pytest.mark.parametrize(
    ("title", "series", "label"),
    [
        ("Requests by outcome", "scorer_request_duration_seconds", "outcome"),
        ("Pairs by outcome", "scorer_items_total", "outcome"),
        ("Tasks by end", "scorer_tasks_total", "end"),
        ("Pool blocks by state", "scorer_pool_blocks", "state"),
    ],
)
def test_every_outcome_has_its_colour(title: str, series: str, label: str, families: dict[str, Metric]) -> None:
    (panel,) = [panel for panel in panels() if panel["title"] == title]

    coloured = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    assert {sample.labels[label] for sample in families[series].samples} <= coloured


@pytest.mark.parametrize("panel", PANELS)
def test_unit_is_one_that_grafana_knows(panel: dict[str, Any]) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]

    assert unit in KNOWN_UNITS or unit.startswith("si:")


@pytest.mark.parametrize("panel", PANELS)
def test_panel_asks_the_chosen_data_source(panel: dict[str, Any]) -> None:
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_each_series_is_narrowed_to_job_and_instance(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expr = target["expr"]
        num_series = len(selectors(expand(expr)))

        assert expr.count('{job=~"$job", instance=~"$instance"') == num_series


@pytest.mark.parametrize("panel", PANELS)
def test_ranges_follow_the_scrape_interval(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert target["expr"].count("[") == target["expr"].count("[$__rate_interval]")


@pytest.mark.parametrize("ask", ASKS)
def test_counters_are_only_read_as_rates(ask: Ask, families: dict[str, Metric]) -> None:
    counting = {"counter", "histogram"}

    bare = {family(series or "") for series in bare_series(ask.expr)} - FROM_PROMETHEUS
    assert not {name for name in bare if families[name].type in counting}
    for function, selector in ranges(ask.expr):
        assert function == "rate"
        assert families[family(selector.vector_selector.name or "")].type in counting


@pytest.mark.parametrize("ask", ASKS)
def test_nothing_divides_by_zero(ask: Ask) -> None:
    divisions = ask.expr.count(" / ")

    assert ask.expr.count(" > 0)") == divisions


def test_readme_maps_each_metric_and_no_other(families: dict[str, Metric]) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(scorer_\w+)` \| (.*?) \|", text, re.MULTILINE))

    labels = {
        name: set().union(*(sample.labels for sample in metric.samples)) - {"le"}
        for name, metric in families.items()
        if name.startswith("scorer_")
    }
    assert labels == {name: set(re.findall(r"`(\w+)`", column)) for name, column in rows.items()}
