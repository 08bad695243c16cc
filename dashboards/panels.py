"""What the overview shows: panels as data, one question each. ``dashboards.build`` draws them.

Here is the upper half, what the service is worth to its callers; below it comes how it runs.
"""

from __future__ import annotations

from dashboards.panels_operation import CACHE, ENGINE, TRAFFIC
from dashboards.queries import ANSWERED, JUDGED, NO_TRAFFIC, OURS, TARGET, mean, quantile, quantiles, share, total
from dashboards.spec import PanelSpec, Query, RowSpec, Threshold

_HIT_RATE = share(total("scorer_cached_tokens_total"), total("scorer_prompt_tokens_total"))
_SAVED = f"{total('scorer_cached_tokens_total')} + {total('scorer_shared_tokens_total')}"
_WITHIN = share(
    total("scorer_request_duration_seconds_bucket", f'{ANSWERED}, le="$slo"'),
    total("scorer_request_duration_seconds_count", ANSWERED),
)
_FAILED = share(
    # "or vector(0)": no failure yet means that the series is missing, which is a share of zero.
    f"{total('scorer_request_duration_seconds_count', OURS)} or vector(0)",
    total("scorer_request_duration_seconds_count", JUDGED),
)
_AVOIDED = (
    f"({_SAVED}) * "
    + share(total("scorer_step_duration_seconds_sum", 'phase="prefill"'), total("scorer_step_tokens_sum"))
)  # fmt: skip

_SOURCES = (("cached", "green"), ("shared", "blue"), ("shared in the batch", "blue"), ("computed", "orange"))


def _steps(first: str, *later: tuple[float, str]) -> tuple[Threshold, ...]:
    return (Threshold(value=None, color=first), *(Threshold(value=value, color=color) for value, color in later))


GLANCE = RowSpec(
    title="At a glance",
    panels=(
        PanelSpec(
            title="Hit rate",
            description="Which share of the prompt tokens was in the cache? scorer_cached_tokens_total / "
            "scorer_prompt_tokens_total over the window, by tokens and not by requests.",
            unit="percentunit",
            kind="stat",
            width=3,
            max_value=1,
            no_value=NO_TRAFFIC,
            queries=(Query(expr=_HIT_RATE, legend="hit rate"),),
        ),
        PanelSpec(
            title="Saved tokens",
            description="How many prompt tokens per second did nobody have to compute? Cached tokens plus tokens "
            "shared inside a batch.",
            unit="si:tok/s",
            kind="stat",
            width=3,
            queries=(Query(expr=_SAVED, legend="saved"),),
        ),
        PanelSpec(
            title="Pairs scored",
            description="How much work is delivered? Pairs with a score per second (scorer_items_total, outcome ok).",
            unit="si:pairs/s",
            kind="stat",
            width=3,
            queries=(Query(expr=total("scorer_items_total", 'outcome="ok"'), legend="pairs"),),
        ),
        PanelSpec(
            title="TTFT p95",
            description="How long do 95 of 100 requests wait at most for a first score? (scorer_ttft_seconds)",
            unit="s",
            kind="stat",
            width=3,
            no_value=NO_TRAFFIC,
            queries=(Query(expr=quantile(0.95, "scorer_ttft_seconds"), legend="p95"),),
        ),
        PanelSpec(
            title="Within objective",
            description="Which share of the answered requests took at most the time chosen above? Exact, since the "
            "objective is an edge of the histogram scorer_request_duration_seconds.",
            unit="percentunit",
            kind="stat",
            width=3,
            max_value=1,
            thresholds=_steps("red", (0.95, "yellow"), (0.99, "green")),
            no_value=NO_TRAFFIC,
            queries=(Query(expr=_WITHIN, legend="within"),),
        ),
        PanelSpec(
            title="Failed requests",
            description="Which share of the requests failed through no fault of the client? Outcomes fault, "
            "unavailable and deadline over all but invalid and cancelled.",
            unit="percentunit",
            kind="stat",
            width=3,
            max_value=1,
            thresholds=_steps("green", (0.001, "yellow"), (0.01, "red")),
            no_value=NO_TRAFFIC,
            queries=(Query(expr=_FAILED, legend="failed"),),
        ),
        PanelSpec(
            title="Self-test",
            description="Does each golden query prefer its own document everywhere? (scorer_selftest_passed, the "
            "worst instance)",
            unit="none",
            kind="stat",
            width=3,
            thresholds=_steps("red", (1, "green")),
            names=(("1", "passed"), ("0", "FAILED")),
            no_value="not run",
            queries=(Query(expr=f"min (scorer_selftest_passed{{{TARGET}}})", legend="self-test"),),
        ),
        PanelSpec(
            title="Instances down",
            description="How many instances does Prometheus fail to scrape?",
            unit="none",
            kind="stat",
            width=3,
            thresholds=_steps("green", (1, "red")),
            no_value="no target",
            queries=(Query(expr=f"count (up{{{TARGET}}}) - sum (up{{{TARGET}}})", legend="down"),),
        ),
    ),
)

REUSE = RowSpec(
    title="What reuse saves",
    panels=(
        PanelSpec(
            title="Prompt tokens by source",
            description="Where did the prompt tokens come from? Cached: keys and values found. Shared: computed once "
            "for another row of the batch. Computed: run by the model. The three add up to scorer_prompt_tokens_total.",
            unit="si:tok/s",
            kind="stacked",
            colours=_SOURCES,
            queries=(
                Query(expr=total("scorer_computed_tokens_total"), legend="computed"),
                Query(expr=total("scorer_shared_tokens_total"), legend="shared"),
                Query(expr=total("scorer_cached_tokens_total"), legend="cached"),
            ),
        ),
        PanelSpec(
            title="Saved share",
            description="Is the benefit of the cache and of sharing inside a batch stable? A fall at steady traffic "
            "means that prefixes changed or are evicted.",
            unit="percentunit",
            max_value=1,
            no_value=NO_TRAFFIC,
            colours=_SOURCES,
            queries=(
                Query(expr=_HIT_RATE, legend="cached"),
                Query(
                    expr=share(total("scorer_shared_tokens_total"), total("scorer_prompt_tokens_total")),
                    legend="shared in the batch",
                ),
            ),
        ),
        PanelSpec(
            title="Prefill time avoided (estimate)",
            description="How many seconds of model time per second does reuse replace? Saved tokens times the mean "
            "time of a computed token in the same window: an estimate, since attention to long prefixes costs more.",
            unit="s",
            no_value=NO_TRAFFIC,
            queries=(
                Query(expr=_AVOIDED, legend="avoided per second"),
                Query(expr=total("scorer_step_duration_seconds_sum", 'phase="prefill"'), legend="spent per second"),
            ),
        ),
    ),
)

LATENCY = RowSpec(
    title="Latency",
    panels=(
        PanelSpec(
            title="Time to first score",
            description="How soon is the first score of a request known? Requests without a score are not in it "
            "(scorer_ttft_seconds).",
            unit="s",
            no_value=NO_TRAFFIC,
            queries=quantiles("scorer_ttft_seconds"),
        ),
        PanelSpec(
            title="Request time",
            description="How long do answered requests take from arrival to answer? (scorer_request_duration_seconds, "
            "outcomes ok and partial)",
            unit="s",
            no_value=NO_TRAFFIC,
            queries=quantiles("scorer_request_duration_seconds", ANSWERED),
        ),
        PanelSpec(
            title="Share within objective",
            description="When was the objective missed? Answered requests and first scores within the time chosen "
            "above.",
            unit="percentunit",
            max_value=1,
            no_value=NO_TRAFFIC,
            queries=(
                Query(expr=_WITHIN, legend="request"),
                Query(
                    expr=share(total("scorer_ttft_seconds_bucket", 'le="$slo"'), total("scorer_ttft_seconds_count")),
                    legend="first score",
                ),
            ),
        ),
        PanelSpec(
            title="Mean time by stage",
            description="Where does the time of an answered request go? A tall queue asks for capacity, a tall prefill "
            "for more reuse or smaller batches, a tall tokenise for repeated texts. (scorer_stage_duration_seconds)",
            unit="s",
            kind="stacked",
            width=12,
            no_value=NO_TRAFFIC,
            queries=(Query(expr=mean("scorer_stage_duration_seconds", by="stage"), legend="{{stage}}"),),
        ),
        PanelSpec(
            title="Request time p95 by route",
            description="Which route is slow?",
            unit="s",
            width=12,
            no_value=NO_TRAFFIC,
            queries=(
                Query(expr=quantile(0.95, "scorer_request_duration_seconds", ANSWERED, by="route"), legend="{{route}}"),
            ),
        ),
    ),
)

OVERVIEW = (GLANCE, REUSE, LATENCY, TRAFFIC, CACHE, ENGINE)
