"""The PromQL of the panels: rates over Grafana's window, quantiles, and ratios that survive silence."""

from __future__ import annotations

from dashboards.spec import Query

TARGET = 'job=~"$job", instance=~"$instance"'
ANSWERED = 'outcome=~"ok|partial"'
OURS = 'outcome=~"fault|unavailable|deadline"'
JUDGED = 'outcome!~"invalid|cancelled"'
"""Requests that count for availability: what clients got wrong or gave up is not held against us."""

NO_TRAFFIC = "no traffic"
"""What a panel says in place of a ratio that does not exist."""


def rate(series: str, labels: str = "") -> str:
    selector = f"{TARGET}, {labels}" if labels else TARGET
    return f"rate({series}{{{selector}}}[$__rate_interval])"


def total(series: str, labels: str = "", *, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({rate(series, labels)})"


def gauge(series: str, *, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({series}{{{TARGET}}})"


def share(part: str, whole: str) -> str:
    """A ratio of two rates that has no value, rather than NaN, when nothing happened."""
    return f"({part}) / (({whole}) > 0)"


def quantile(q: float, series: str, labels: str = "", *, by: str = "") -> str:
    """The comparison drops the NaN of a histogram that nothing was added to."""
    grouping = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {total(f'{series}_bucket', labels, by=grouping)}) >= 0"


def quantiles(series: str, labels: str = "") -> tuple[Query, ...]:
    return tuple(Query(expr=quantile(q, series, labels), legend=f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


def mean(series: str, *, by: str = "") -> str:
    return share(total(f"{series}_sum", by=by), total(f"{series}_count", by=by))
