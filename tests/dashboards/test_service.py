"""The dashboards on a service that really runs: real process, real engine, real Prometheus."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards import prometheus_server, service_process
from tests.dashboards.prometheus_server import Prometheus, wait_until
from tests.dashboards.promql import Ask, panel_asks

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (a Debian package) is missing")

ASKS = [pytest.param(ask, id=str(ask)) for ask in panel_asks()]
ROUTE = "/v1/batches/score"
DOCUMENTS = ["the document is here", "question: answer? Yes", "a b c, d e f"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What clients were told, and what the metrics say about the same time."""

    replies: list[dict[str, Any]]
    before: dict[str, float]
    after: dict[str, float]
    prometheus: Prometheus
    client: httpx.Client

    def grown(self, series: str) -> float:
        return self.after[series] - self.before.get(series, 0)

    def told(self, field: str) -> int:
        return sum(reply["usage"][field] for reply in self.replies)


def scrape(client: httpx.Client) -> dict[str, float]:
    """Value of each series, named as in the text of the page."""
    counts: dict[str, float] = {}
    for metric in text_string_to_metric_families(client.get("/metrics").text):
        for sample in metric.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            counts[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return counts


def ask(client: httpx.Client, *queries: str) -> dict[str, Any]:
    answer = client.post(ROUTE, json={"queries": list(queries), "documents": DOCUMENTS})
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("service")
    model = service_process.write_tiny_model(folder / "tiny")
    with (
        service_process.serving(model, folder / "service.log") as client,
        prometheus_server.running(folder, client.base_url.netloc.decode()) as prometheus,
    ):
        before = scrape(client)
        replies = []
        for number, queries in enumerate([("what is it?", "why?"), ("what is it?",), ("the query",)], start=1):
            replies.append(ask(client, *queries))
            assert client.post(ROUTE, json={"queries": []}).status_code == 422
            wait_until(
                lambda number=number: _refusals(prometheus) == number,  # type: ignore[misc]
                what=f"a scrape of request {number}",
            )
        yield Observed(replies, before, scrape(client), prometheus, client)


def _refusals(prometheus: Prometheus) -> float:
    return sum(s.value for s in prometheus.query('scorer_request_duration_seconds_count{outcome="invalid"}'))


def test_token_counters_equal_what_the_replies_said(observed: Observed) -> None:
    assert observed.grown("scorer_prompt_tokens_total") == observed.told("prompt_tokens")
    assert observed.grown("scorer_shared_tokens_total") == observed.told("shared_tokens") > 0
    assert observed.grown("scorer_computed_tokens_total") == observed.told("computed_tokens") > 0
    cached = sum(reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in observed.replies)
    assert observed.grown("scorer_cached_tokens_total") == cached > 0
    kept = sum(reply["usage"]["prompt_tokens_details"]["cache_write_tokens"] for reply in observed.replies)
    assert observed.grown("scorer_kept_tokens_total") == kept > 0


def test_steps_ran_what_tasks_computed(observed: Observed) -> None:
    assert observed.grown("scorer_step_tokens_sum") == observed.grown("scorer_computed_tokens_total")


def test_pairs_and_requests_are_counted_once_under_their_outcome(observed: Observed) -> None:
    num_pairs = sum(len(reply["results"]) for reply in observed.replies)
    num_replies = len(observed.replies)

    assert observed.grown("scorer_items_total{outcome=ok}") == num_pairs == 4 * len(DOCUMENTS)
    assert observed.grown("scorer_tasks_total{end=ok}") == num_replies
    assert observed.grown("scorer_task_rows_sum") == num_pairs
    assert observed.grown(f"scorer_request_duration_seconds_count{{outcome=ok,route={ROUTE}}}") == num_replies
    assert observed.grown(f"scorer_request_duration_seconds_count{{outcome=invalid,route={ROUTE}}}") == num_replies
    assert sum(observed.grown(name) for name in observed.after if name.startswith("scorer_tasks_total")) == num_replies


def test_times_are_those_of_the_replies(observed: Observed) -> None:
    ttft_s = sum(reply["timings"]["ttft_ms"] for reply in observed.replies) / 1000

    assert observed.grown("scorer_ttft_seconds_count") == len(observed.replies)
    assert observed.grown("scorer_ttft_seconds_sum") == pytest.approx(ttft_s, abs=0.001 * len(observed.replies))
    for stage in ("tokenise", "queue", "prefill", "readout", "respond"):
        assert observed.grown(f"scorer_stage_duration_seconds_count{{stage={stage}}}") == len(observed.replies)


def test_pool_and_tree_add_up(observed: Observed) -> None:
    info = observed.client.get("/info").json()
    blocks = {state: observed.after[f"scorer_pool_blocks{{state={state}}}"] for state in ("free", "cached", "pinned")}

    assert sum(blocks.values()) == info["num_blocks"]
    assert blocks["pinned"] == 0
    written = observed.after["scorer_kept_tokens_total"] - observed.after["scorer_evicted_tokens_total"]
    assert observed.after["scorer_prefix_tree_tokens"] == written
    assert observed.after["scorer_queue_tasks"] == observed.after["scorer_queue_tokens"] == 0


@pytest.mark.parametrize("ask", ASKS)
def test_panel_shows_finite_numbers(ask: Ask, observed: Observed) -> None:
    samples = observed.prometheus.query(ask.expr)

    assert samples
    assert all(math.isfinite(sample.value) for sample in samples)


def test_page_passes_the_linter_of_prometheus(observed: Observed) -> None:
    page = observed.client.get("/metrics")

    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.content, capture_output=True, timeout=30, check=False
    )

    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
