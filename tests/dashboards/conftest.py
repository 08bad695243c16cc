"""The metrics as a scrape shows them, for tests that compare names."""

from __future__ import annotations

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from scorer.metrics import Metrics
from tests.dashboards import traffic


@pytest.fixture(scope="session")
def families() -> dict[str, Metric]:
    """Every metric by the name that queries use (counters with ``_total``), after some traffic."""
    metrics = Metrics()
    memo = traffic.start(metrics)
    traffic.send(metrics, memo)
    found = list(text_string_to_metric_families(metrics.exposition(None)[0].decode()))
    return {f"{family.name}_total" if family.type == "counter" else family.name: family for family in found}
