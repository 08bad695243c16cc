"""Every query of the dashboards, executed by a real Prometheus on traffic whose numbers are known."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from scorer.metrics import Metrics
from tests.dashboards import prometheus_server, traffic
from tests.dashboards.prometheus_server import Prometheus, wait_until
from tests.dashboards.promql import Ask, overview, panel_asks, rule_asks, rules, selectors

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (a Debian package) is missing")

ASKS = [pytest.param(ask, id=str(ask)) for ask in panel_asks()]
RULES = [pytest.param(ask, id=str(ask)) for ask in rule_asks()]
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Scraped:
    """Prometheus after it has seen the service idle, and then ``ROUNDS`` rounds of traffic."""

    prometheus: Prometheus
    metrics: Metrics
    idle_at: float
    sent: traffic.Sent

    def number(self, expr: str) -> float:
        (sample,) = self.prometheus.query(expr)
        return sample.value

    def panel(self, title: str, letter: str = "A") -> float:
        (ask,) = [ask for ask in panel_asks() if ask.where == f"{title} / {letter}"]
        return self.number(ask.expr)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    metrics = Metrics()
    memo = traffic.start(metrics)
    with (
        prometheus_server.exposing(metrics) as target,
        prometheus_server.running(tmp_path_factory.mktemp("prometheus"), target) as prometheus,
    ):
        wait_until(lambda: _sum(prometheus, "count_over_time(up[1m])") >= 3, what="three scrapes")
        idle_at = time.time()
        for done in range(1, ROUNDS + 1):
            sent = traffic.send(metrics, memo)
            # the last thing of a round: a scrape that has it has all of the round
            lost = done * sent.unscored
            wait_until(
                lambda lost=lost: _sum(prometheus, 'scorer_items_total{outcome="failed"}') == lost,  # type: ignore[misc]
                what=f"a scrape of round {done}",
            )
        recorded = [rule["record"] for rule in rules() if "record" in rule]
        wait_until(lambda: all(prometheus.query(name) for name in recorded), what="the recording rules")
        yield Scraped(prometheus, metrics, idle_at, sent)


def _sum(prometheus: Prometheus, expr: str) -> float:
    return sum(sample.value for sample in prometheus.query(expr))


@pytest.mark.parametrize("ask", ASKS)
def test_panel_shows_finite_numbers_under_traffic(ask: Ask, scraped: Scraped) -> None:
    now = scraped.prometheus.query(ask.expr)
    drawn = scraped.prometheus.last_seconds(ask.expr, 10)

    assert now
    assert drawn
    assert all(math.isfinite(sample.value) for sample in now + drawn)


@pytest.mark.parametrize("ask", ASKS)
def test_panel_shows_no_nan_without_traffic(ask: Ask, scraped: Scraped) -> None:
    idle = scraped.prometheus.query(ask.expr, at=scraped.idle_at)

    assert all(math.isfinite(sample.value) for sample in idle)


@pytest.mark.parametrize("title", ["Hit rate", "Within objective", "Failed requests", "TTFT p95", "Saved share"])
def test_shares_have_no_value_without_traffic(title: str, scraped: Scraped) -> None:
    (ask,) = [ask for ask in panel_asks() if ask.where == f"{title} / A"]

    assert scraped.prometheus.query(ask.expr, at=scraped.idle_at) == []


def test_panels_show_the_traffic_that_was_sent(scraped: Scraped) -> None:
    sent = scraped.sent

    assert scraped.panel("Hit rate") == pytest.approx(sent.cached_tokens / sent.prompt_tokens)
    assert scraped.panel("Saved share", "B") == pytest.approx(sent.shared_tokens / sent.prompt_tokens)
    assert scraped.panel("Failed requests") == pytest.approx(sent.failed / (sent.answered + sent.failed))
    assert scraped.panel("Within objective") == 1
    assert 0.025 < scraped.panel("TTFT p95") <= 0.05
    assert scraped.panel("Tokeniser memo") == pytest.approx(0.75)
    assert scraped.panel("Self-test") == 1
    assert scraped.panel("Instances down") == 0


def test_counters_equal_the_traffic_that_was_sent(scraped: Scraped) -> None:
    sent = scraped.sent

    for name in ("prompt", "cached", "shared", "computed", "kept", "evicted"):
        want = ROUNDS * getattr(sent, f"{name}_tokens")
        assert scraped.number(f"sum(scorer_{name}_tokens_total)") == want, name
    assert scraped.number('scorer_items_total{outcome="ok"}') == ROUNDS * sent.scored
    assert scraped.number('scorer_items_total{outcome="failed"}') == ROUNDS * sent.unscored
    assert scraped.number("scorer_ttft_seconds_count") == ROUNDS * sent.answered
    assert scraped.number('sum(scorer_request_duration_seconds_count{outcome="ok"})') == ROUNDS * sent.answered
    assert scraped.number('sum(scorer_request_duration_seconds_count{outcome="fault"})') == ROUNDS * sent.failed
    assert scraped.number("sum(scorer_pool_blocks)") == traffic.SNAPSHOT.num_blocks


@pytest.mark.parametrize("name", ["job", "instance"])
def test_variable_has_values(name: str, scraped: Scraped) -> None:
    (variable,) = [each for each in overview()["templating"]["list"] if each["name"] == name]
    inside = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
    series, _, label = inside.replace("$job", ".+").rpartition(", ")

    assert label == name
    assert scraped.prometheus.label_values(label, series)


@pytest.mark.parametrize("ask", RULES)
def test_rule_reads_series_that_are_there(ask: Ask, scraped: Scraped) -> None:
    never_sent = {"refused", "deadline", "unavailable"}

    for selector in selectors(ask.expr):
        kept = [m for m in selector.matchers.matchers if m.value not in never_sent]
        text = f"{selector.name}{{{', '.join(map(str, kept))}}}"
        assert scraped.prometheus.query(text), text


def test_every_rule_evaluates(scraped: Scraped) -> None:
    wait_until(lambda: all(rule["health"] != "unknown" for rule in scraped.prometheus.rules()), what="an evaluation")
    evaluated = scraped.prometheus.rules()

    assert len(evaluated) == len(rules())
    assert [(rule["name"], rule.get("lastError")) for rule in evaluated if rule["health"] != "ok"] == []


def test_alert_fires_on_the_fault_that_was_sent(scraped: Scraped) -> None:
    def firing() -> set[str]:
        return {rule["name"] for rule in scraped.prometheus.rules() if rule.get("state") == "firing"}

    wait_until(lambda: "ScorerEngineFault" in firing(), what="ScorerEngineFault")

    assert not firing() & {"ScorerSelfTestFailed", "ScorerNonFiniteScores", "ScorerDown"}


def test_exposition_passes_the_linter_of_prometheus(scraped: Scraped) -> None:
    body, _ = scraped.metrics.exposition(None)

    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
