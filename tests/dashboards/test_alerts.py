"""The alerts: about the metrics there are, tested by promtool, each with a page that says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import Metric

from scorer.metrics import LATENCY_BUCKETS_S
from tests.dashboards.promql import FOLDER, Ask, family, rule_asks, rules, selectors

ASKS = [pytest.param(ask, id=str(ask)) for ask in rule_asks()]
ALERTS = [pytest.param(rule, id=rule["alert"]) for rule in rules() if "alert" in rule]
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
FROM_PROMETHEUS = {"up"}
RULE_TESTS = ("alerts_test.yml", "alerts_long_test.yml")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is missing")


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rule_tests() -> list[dict[str, Any]]:
    files = [yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")) for name in RULE_TESTS]
    return [alert for file in files for test in file["tests"] for alert in test.get("alert_rule_test", [])]


@needs_promtool
def test_rules_are_valid() -> None:
    found = re.search(r"SUCCESS: (\d+) rules found", promtool("check", "rules", "alerts.yml"))

    assert found
    assert int(found[1]) == len(rules())


@needs_promtool
@pytest.mark.parametrize("name", RULE_TESTS)
def test_rule_tests_pass(name: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", name)


@needs_promtool
def test_scrape_example_is_valid() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_is_seen_firing_and_silent(alert: dict[str, Any]) -> None:
    expected = [test["exp_alerts"] for test in rule_tests() if test["alertname"] == alert["alert"]]

    assert [fired for fired in expected if fired], "no test in which it fires"
    assert [] in expected, "no test in which it stays silent"


def test_rule_tests_name_alerts_that_exist() -> None:
    assert {test["alertname"] for test in rule_tests()} <= {rule.get("alert") for rule in rules()}


@pytest.mark.parametrize("ask", ASKS)
def test_series_and_label_values_exist(ask: Ask, families: dict[str, Metric]) -> None:
    for selector in selectors(ask.expr):
        name = selector.name or ""
        if name in FROM_PROMETHEUS | RECORDED:
            continue
        samples = [sample for sample in families[family(name)].samples if sample.name == name]
        assert samples, f"no series {name}"
        for matcher in selector.matchers.matchers:
            if matcher.name != "job":
                assert all(matcher.name in sample.labels for sample in samples), str(matcher)
            if matcher.op == promql_parser.MatchOp.Equal and matcher.name not in {"job", "outcome"}:
                assert any(sample.labels[matcher.name] == matcher.value for sample in samples), str(matcher)


def test_each_recorded_ratio_is_used() -> None:
    used = {selector.name for ask in rule_asks() for selector in selectors(ask.expr)}

    assert used >= RECORDED


def test_latency_threshold_is_an_edge() -> None:
    thresholds = {
        float(matcher.value)
        for ask in rule_asks()
        for selector in selectors(ask.expr)
        for matcher in selector.matchers.matchers
        if matcher.name == "le"
    }

    assert thresholds
    assert thresholds <= set(LATENCY_BUCKETS_S)


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_says_how_bad_and_what_to_do(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    text = (FOLDER.parent / page).read_text(encoding="utf-8")
    anchors = {re.sub(r"\W+", "-", title.strip().lower()) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}

    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert alert["annotations"]["summary"]
    assert anchor in anchors


def test_the_runbook_knows_no_other_alert() -> None:
    text = (FOLDER.parent / "docs" / "runbook.md").read_text(encoding="utf-8")
    anchors = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in rules() if "alert" in rule}

    assert {title.lower() for title in re.findall(r"^### (Scorer\w+)$", text, re.MULTILINE)} == anchors
