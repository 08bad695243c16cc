"""The lower half of the overview: traffic, cache, engine and process."""

from __future__ import annotations

from dashboards.queries import NO_TRAFFIC, TARGET, gauge, mean, quantiles, share, total
from dashboards.spec import PanelSpec, Query, RowSpec

# The same outcome has the same colour on every panel, and what went well is never red.
_ENDINGS = (
    ("ok", "green"),
    ("partial", "yellow"),
    ("invalid", "blue"),
    ("refused", "orange"),
    ("deadline", "purple"),
    ("cancelled", "gray"),
    ("unavailable", "dark-red"),
    ("closed", "dark-red"),
    ("fault", "red"),
    ("failed", "red"),
    ("non_finite", "dark-red"),
)
_BLOCKS = (("free", "gray"), ("cached", "green"), ("pinned", "orange"))

TRAFFIC = RowSpec(
    title="Traffic and outcomes",
    panels=(
        PanelSpec(
            title="Requests by outcome",
            description="What became of the requests? invalid: the client's to fix. refused: over an admission limit. "
            "unavailable: starting, draining or stopped. fault: ours.",
            unit="reqps",
            kind="stacked",
            colours=_ENDINGS,
            queries=(Query(expr=total("scorer_request_duration_seconds_count", by="outcome"), legend="{{outcome}}"),),
        ),
        PanelSpec(
            title="Errors by code",
            description="Why were requests without scores? The code is that of the error, in the answer and in "
            "the log. invalid_value: a client sends something wrong. overloaded, out_of_capacity: which limit refuses.",
            unit="reqps",
            kind="stacked",
            no_value="no errors",
            queries=(Query(expr=f"{total('scorer_errors_total', by='code')} > 0", legend="{{code}}"),),
        ),
        PanelSpec(
            title="Pairs by outcome",
            description="What became of the pairs? non_finite means that the model gave NaN or infinity; failed means "
            "lost with the whole request.",
            unit="si:pairs/s",
            kind="stacked",
            colours=_ENDINGS,
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
            no_value=NO_TRAFFIC,
            queries=quantiles("scorer_task_rows"),
        ),
        PanelSpec(
            title="Tasks by end",
            description="How did the engine end its tasks? Each task is counted exactly once.",
            unit="reqps",
            kind="stacked",
            colours=_ENDINGS,
            queries=(Query(expr=total("scorer_tasks_total", by="end"), legend="{{end}}"),),
        ),
        PanelSpec(
            title="Generated tokens",
            description="How much text is generated? Each of these tokens takes a position of a step of its own.",
            unit="si:tok/s",
            queries=(Query(expr=total("scorer_generated_tokens_total"), legend="generated"),),
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
            colours=_BLOCKS,
            queries=(Query(expr=gauge("scorer_pool_blocks", by="state"), legend="{{state}}"),),
        ),
        PanelSpec(
            title="Kept and evicted tokens",
            description="Does the cache hold what comes back? Evictions near the rate of kept tokens, with a low hit "
            "rate, mean that the working set does not fit. Recomputed tokens were evicted from under a task.",
            unit="si:tok/s",
            queries=(
                Query(expr=total("scorer_kept_tokens_total"), legend="kept"),
                Query(expr=total("scorer_evicted_tokens_total"), legend="evicted"),
                Query(expr=total("scorer_recomputed_tokens_total"), legend="recomputed"),
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
            no_value=NO_TRAFFIC,
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
            no_value=NO_TRAFFIC,
            queries=(Query(expr=mean("scorer_step_duration_seconds", by="phase"), legend="{{phase}}"),),
        ),
        PanelSpec(
            title="Tokens per step",
            description="Are steps well filled? Compare with the step budget; small steps waste the device, full ones "
            "make short requests wait. (scorer_step_tokens)",
            unit="short",
            no_value=NO_TRAFFIC,
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
                    expr="count by (version, model, revision, template, dtype, linear_dtype, kv_dtype, kernels) "
                    f"(scorer_build_info{{{TARGET}}})",
                    legend="{{version}} · {{model}}@{{revision}} · {{template}} · {{dtype}} · linear {{linear_dtype}} "
                    "· KV {{kv_dtype}} · {{kernels}}",
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
