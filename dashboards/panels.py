"""What the overview shows: panels as data, one question each. ``dashboards.build`` draws them."""

from __future__ import annotations

from dashboards.queries import ANSWERED, JUDGED, OURS, TARGET, gauge, mean, quantile, quantiles, share, total
from dashboards.spec import PanelSpec, Query, RowSpec, Threshold

_NO_TRAFFIC = "no traffic"
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


def _colours(first: str, *later: tuple[float, str]) -> tuple[Threshold, ...]:
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
            no_value=_NO_TRAFFIC,
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
            no_value=_NO_TRAFFIC,
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
            thresholds=_colours("red", (0.95, "yellow"), (0.99, "green")),
            no_value=_NO_TRAFFIC,
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
            thresholds=_colours("green", (0.001, "yellow"), (0.01, "red")),
            no_value=_NO_TRAFFIC,
            queries=(Query(expr=_FAILED, legend="failed"),),
        ),
        PanelSpec(
            title="Self-test",
            description="Do the golden pairs still score as recorded on every instance? (scorer_selftest_passed, the "
            "worst instance)",
            unit="none",
            kind="stat",
            width=3,
            thresholds=_colours("red", (1, "green")),
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
            thresholds=_colours("green", (1, "red")),
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
            no_value=_NO_TRAFFIC,
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
            no_value=_NO_TRAFFIC,
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
            no_value=_NO_TRAFFIC,
            queries=quantiles("scorer_ttft_seconds"),
        ),
        PanelSpec(
            title="Request time",
            description="How long do answered requests take from arrival to answer? (scorer_request_duration_seconds, "
            "outcomes ok and partial)",
            unit="s",
            no_value=_NO_TRAFFIC,
            queries=quantiles("scorer_request_duration_seconds", ANSWERED),
        ),
        PanelSpec(
            title="Share within objective",
            description="When was the objective missed? Answered requests and first scores within the time chosen "
            "above.",
            unit="percentunit",
            max_value=1,
            no_value=_NO_TRAFFIC,
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
            no_value=_NO_TRAFFIC,
            queries=(Query(expr=mean("scorer_stage_duration_seconds", by="stage"), legend="{{stage}}"),),
        ),
        PanelSpec(
            title="Request time p95 by route",
            description="Which route is slow?",
            unit="s",
            width=12,
            no_value=_NO_TRAFFIC,
            queries=(
                Query(expr=quantile(0.95, "scorer_request_duration_seconds", ANSWERED, by="route"), legend="{{route}}"),
            ),
        ),
    ),
)

TRAFFIC = RowSpec(
    title="Traffic and outcomes",
    panels=(
        PanelSpec(
            title="Requests by outcome",
            description="What became of the requests? invalid: the client's to fix. refused: over an admission limit. "
            "unavailable: starting, draining or stopped. fault: ours.",
            unit="reqps",
            kind="stacked",
            queries=(Query(expr=total("scorer_request_duration_seconds_count", by="outcome"), legend="{{outcome}}"),),
        ),
        PanelSpec(
            title="Pairs by outcome",
            description="What became of the pairs? non_finite means that the model gave NaN or infinity; failed means "
            "lost with the whole request.",
            unit="si:pairs/s",
            kind="stacked",
            queries=(Query(expr=total("scorer_items_total", by="outcome"), legend="{{outcome}}"),),
        ),
        PanelSpec(
            title="Queue",
            description="Is work piling up? Tasks that were submitted and have not ended.",
            unit="short",
            queries=(Query(expr=gauge("scorer_queue_tasks"), legend="tasks"),),
        ),
        PanelSpec(
            title="Queued tokens",
            description="How much uncached work is waiting? Admission refuses by this number.",
            unit="short",
            queries=(Query(expr=gauge("scorer_queue_tokens"), legend="tokens"),),
        ),
        PanelSpec(
            title="Rows per task",
            description="How large are the batches that clients send? (scorer_task_rows)",
            unit="short",
            no_value=_NO_TRAFFIC,
            queries=quantiles("scorer_task_rows"),
        ),
        PanelSpec(
            title="Tasks by end",
            description="How did the engine end its tasks? Each task is counted exactly once.",
            unit="reqps",
            kind="stacked",
            queries=(Query(expr=total("scorer_tasks_total", by="end"), legend="{{end}}"),),
        ),
    ),
)

CACHE = RowSpec(
    title="Cache",
    panels=(
        PanelSpec(
            title="Pool blocks by state",
            description="How full is the pool, and with what? Pinned: in use by a task. Cached: reusable, first to go. "
            "A pool full of cached blocks is healthy; one full of pinned blocks makes tasks wait.",
            unit="short",
            kind="stacked",
            queries=(Query(expr=gauge("scorer_pool_blocks", by="state"), legend="{{state}}"),),
        ),
        PanelSpec(
            title="Kept and evicted tokens",
            description="Does the cache hold what comes back? Evictions near the rate of kept tokens, with a low hit "
            "rate, mean that the working set does not fit.",
            unit="si:tok/s",
            queries=(
                Query(expr=total("scorer_kept_tokens_total"), legend="kept"),
                Query(expr=total("scorer_evicted_tokens_total"), legend="evicted"),
            ),
        ),
        PanelSpec(
            title="Prefix tree",
            description="What does the cache hold? Tokens that can be reused, and nodes of the tree they hang in.",
            unit="short",
            queries=(
                Query(expr=gauge("scorer_prefix_tree_tokens"), legend="tokens"),
                Query(expr=gauge("scorer_prefix_tree_nodes"), legend="nodes"),
            ),
        ),
        PanelSpec(
            title="Tokeniser memo",
            description="Which share of the texts did not have to be tokenised again?",
            unit="percentunit",
            width=12,
            max_value=1,
            no_value=_NO_TRAFFIC,
            queries=(
                Query(
                    expr=share(
                        total("scorer_tokenise_memo_hits_total"),
                        f"{total('scorer_tokenise_memo_hits_total')} + {total('scorer_tokenise_memo_misses_total')}",
                    ),
                    legend="found",
                ),
            ),
        ),
        PanelSpec(
            title="Tokeniser memo size",
            description="How much text does the memo remember, in tokens?",
            unit="short",
            width=12,
            queries=(Query(expr=gauge("scorer_tokenise_memo_tokens"), legend="tokens"),),
        ),
    ),
)

ENGINE = RowSpec(
    title="Engine and process",
    panels=(
        PanelSpec(
            title="Mean step time by phase",
            description="Is a step spent in the model, or around it? (scorer_step_duration_seconds)",
            unit="s",
            kind="stacked",
            no_value=_NO_TRAFFIC,
            queries=(Query(expr=mean("scorer_step_duration_seconds", by="phase"), legend="{{phase}}"),),
        ),
        PanelSpec(
            title="Tokens per step",
            description="Are steps well filled? Compare with the step budget; small steps waste the device, full ones "
            "make short requests wait. (scorer_step_tokens)",
            unit="short",
            no_value=_NO_TRAFFIC,
            queries=quantiles("scorer_step_tokens"),
        ),
        PanelSpec(
            title="What is running",
            description="Which version, model, template and kernels answer? More than one line: instances differ, and "
            "so may their scores.",
            unit="none",
            kind="name",
            queries=(
                Query(
                    expr="count by (version, model, revision, template, dtype, kernels) "
                    f"(scorer_build_info{{{TARGET}}})",
                    legend="{{version}} · {{model}}@{{revision}} · {{template}} · {{dtype}} · {{kernels}}",
                ),
            ),
        ),
        PanelSpec(
            title="CPU",
            description="How many cores does each instance use?",
            unit="short",
            queries=(Query(expr=total("process_cpu_seconds_total", by="instance"), legend="{{instance}}"),),
        ),
        PanelSpec(
            title="Resident memory",
            description="How much memory does each instance hold? The pool is allocated at the start; growth after "
            "that is something else.",
            unit="bytes",
            queries=(Query(expr=gauge("process_resident_memory_bytes", by="instance"), legend="{{instance}}"),),
        ),
        PanelSpec(
            title="Open files",
            description="Do connections or files leak?",
            unit="short",
            queries=(Query(expr=gauge("process_open_fds", by="instance"), legend="{{instance}}"),),
        ),
    ),
)

OVERVIEW = (GLANCE, REUSE, LATENCY, TRAFFIC, CACHE, ENGINE)
