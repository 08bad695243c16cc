"""Every metric of the service: name, unit, labels, buckets. Defined here and nowhere else.

Counters come from records of what ran, never from what was planned. Ratios (hit rate, share
within the objective) are left to the dashboard, which divides two counters over one window.
Label values come from the closed sets below; ``route`` is the path template of a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine import EngineSnapshot, StepStats, TaskStats
from engine.records import TaskEnd
from scorer.postponed import PostponedCalls
from scorer.tokens.text_tokens import MemoStats

M = TypeVar("M", Counter, Histogram)

Stage: TypeAlias = Literal["tokenise", "queue", "prefill", "readout", "respond"]

RequestOutcome: TypeAlias = Literal[
    "ok",  # every item has a score
    "partial",  # answered; at least one item has an error instead of a score
    "invalid",  # the client has to change the request
    "refused",  # over an admission limit
    "deadline",  # too late for any score
    "cancelled",  # the client went away
    "unavailable",  # starting, draining or stopped
    "fault",  # our failure
]

ItemOutcome: TypeAlias = Literal[
    "ok",
    "invalid",  # this item cannot be scored: too long, empty, ...
    "deadline",  # not started in time
    "non_finite",  # the model gave NaN or infinity
    "failed",  # lost with its request
]

ErrorCode: TypeAlias = Literal[
    "malformed_json",
    "unauthenticated",
    "model_not_found",
    "body_timeout",
    "body_too_large",
    "unsupported_media_type",
    "invalid_value",
    "invalid_task",
    "overloaded",
    "out_of_capacity",
    "client_closed_request",
    "non_finite_score",
    "not_ready",
    "engine_closed",
    "engine_fault",
    "model_failed_to_load",
    "device_unusable",
    "deadline_exceeded",
    "internal_error",
    "not_found",
    "method_not_allowed",
    "other",  # whatever else the web framework refuses by itself
]
"""Why a request was not answered with scores; the code of its error in the native form."""

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""A cached call takes milliseconds, so edges start there; from 0.05 on they are the
thresholds that alerts and dashboards use, which makes every "share within" exact."""

_ROW_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_OPENMETRICS = "application/openmetrics-text"


class Metrics:
    """The series of one service, in a registry of their own.

    An ``EngineObserver``: ``on_step`` and ``on_task`` run on the engine's thread. Everything
    is safe to call from any thread. What is reported while a client still waits for its answer
    is counted after that: when a request has ended, or before a scrape.

    Args:
        request_limit_s: Longest time a request may take. It becomes the top edge of the
            latency histograms where it is above the usual one, so that no answered request
            falls beyond the last finite bucket.
    """

    def __init__(self, *, request_limit_s: float = LATENCY_BUCKETS_S[-1]) -> None:
        self._registry = registry = CollectorRegistry()
        self._postponed = PostponedCalls()
        seconds = tuple(sorted({*LATENCY_BUCKETS_S, max(request_limit_s, LATENCY_BUCKETS_S[-1])}))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._requests = histogram(
            "scorer_request_duration_seconds", "Arrival to answer sent, by outcome.", seconds, "route", "outcome"
        )
        self._ttft = histogram(
            "scorer_ttft_seconds", "Arrival to first score known; requests without a score are not in it.", seconds
        )
        self._stages = _each(
            histogram(
                "scorer_stage_duration_seconds", "Time an answered request spent in each stage.", seconds, "stage"
            ),
            get_args(Stage),
        )
        self._errors = _each(
            counter("scorer_errors_total", "Requests that were answered with an error, by its code.", "code"),
            get_args(ErrorCode),
        )
        self._items = _each(
            counter("scorer_items_total", "Pairs that were asked for, by what became of them.", "outcome"),
            get_args(ItemOutcome),
        )

        self._tasks = _each(
            counter("scorer_tasks_total", "Tasks that the engine ended, by how they ended.", "end"), get_args(TaskEnd)
        )
        self._task_rows = histogram("scorer_task_rows", "Rows of a task given to the engine.", _ROW_BUCKETS)
        self._prompt = counter("scorer_prompt_tokens_total", "Tokens of all rows: cached, shared and computed.")
        self._cached = counter("scorer_cached_tokens_total", "Prompt tokens whose keys and values were in the cache.")
        self._shared = counter("scorer_shared_tokens_total", "Prompt tokens computed once for another row.")
        self._computed = counter("scorer_computed_tokens_total", "Prompt tokens that the model ran.")
        self._recomputed = counter(
            "scorer_recomputed_tokens_total", "Tokens run again: they were evicted while their task was under way."
        )

        self._generated = counter("scorer_generated_tokens_total", "Tokens that answers of generations consist of.")

        self._step_seconds = _each(
            histogram("scorer_step_duration_seconds", "Time of each phase of a forward pass.", seconds, "phase"),
            ("schedule", "prefill", "readout", "commit"),
        )
        self._step_tokens = histogram("scorer_step_tokens", "Tokens that the model ran in one step.", _TOKEN_BUCKETS)
        self._kept = counter("scorer_kept_tokens_total", "Tokens newly written to the cache.")
        self._evicted = counter("scorer_evicted_tokens_total", "Tokens dropped from the cache to make room.")

        self._observed = _ObservedState()
        registry.register(self._observed)
        ProcessCollector(registry=registry)

    def on_step(self, stats: StepStats) -> None:
        self._postponed.postpone(self._count_step, stats)

    def on_task(self, stats: TaskStats) -> None:
        """Count tokens and the end. Stage times are the service's, through ``observe_stage``."""
        self._postponed.postpone(self._count_task, stats)

    def _count_step(self, stats: StepStats) -> None:
        self._step_tokens.observe(stats.computed_tokens)
        self._kept.inc(stats.kept_tokens)
        self._evicted.inc(stats.evicted_tokens)
        self._step_seconds["schedule"].observe(stats.schedule_s)
        self._step_seconds["prefill"].observe(stats.prefill_s)
        self._step_seconds["readout"].observe(stats.readout_s)
        self._step_seconds["commit"].observe(stats.commit_s)

    def _count_task(self, stats: TaskStats) -> None:
        self._tasks[stats.end].inc()
        self._task_rows.observe(stats.num_rows)
        # The whole before its parts: a scrape in between shows a share that is low, never above one.
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        self._shared.inc(stats.shared_tokens)
        self._computed.inc(stats.computed_tokens)
        self._recomputed.inc(stats.recomputed_tokens)
        self._generated.inc(stats.generated_tokens)

    def observe_request(self, *, route: str, outcome: RequestOutcome, seconds: float) -> None:
        """Count a finished request, and with it all that was postponed: its client has the answer.

        Args:
            route: Path template of the handler, never the raw path.
            seconds: Arrival to answer handed to the server.
        """
        self._requests.labels(route, outcome).observe(seconds)
        self._postponed.make()

    def count_error(self, code: str) -> None:
        """Count a request whose answer is an error, or whose stream ended in one."""
        self._errors.get(code, self._errors["other"]).inc()

    def observe_stage(self, stage: Stage, seconds: float) -> None:
        """Record one stage of a request that was answered with at least one score."""
        self._postponed.postpone(self._stages[stage].observe, seconds)

    def observe_ttft(self, seconds: float) -> None:
        """Record arrival to first score, once for each request that got a score."""
        self._postponed.postpone(self._ttft.observe, seconds)

    def count_items(self, outcome: ItemOutcome, count: int) -> None:
        self._postponed.postpone(self._items[outcome].inc, count)

    def set_selftest(self, passed: bool) -> None:
        """Publish how the self-test ended. Until then the series is absent."""
        self._observed.selftest = passed

    def set_build_info(
        self,
        *,
        version: str,
        model: str,
        revision: str,
        template: str,
        dtype: str,
        linear_dtype: str,
        kv_dtype: str,
        kernels: str,
    ) -> None:
        """Publish what is running; replaces what was published before."""
        self._observed.build = {
            "version": version,
            "model": model,
            "revision": revision,
            "template": template,
            "dtype": dtype,
            "linear_dtype": linear_dtype,
            "kv_dtype": kv_dtype,
            "kernels": kernels,
        }

    def watch_engine(self, read: Callable[[], EngineSnapshot]) -> None:
        """Read the pool and the queue through ``read`` at every scrape."""
        self._observed.engine = read

    def watch_memo(self, read: Callable[[], MemoStats]) -> None:
        """Read the tokeniser's memo through ``read`` at every scrape."""
        self._observed.memo = read

    def exposition(self, accept: str | None) -> tuple[bytes, str]:
        """Body and content type of a scrape: OpenMetrics where ``Accept`` names it, else Prometheus text."""
        media_types = {part.split(";")[0].strip().lower() for part in (accept or "").split(",")}
        self._postponed.make()
        # The header itself is not handed on: its parameters are a client's, and the library echoes or trips over them.
        encode, content_type = choose_encoder(_OPENMETRICS if _OPENMETRICS in media_types else "")
        return encode(_WithoutCreated(self._registry)), content_type


class _ObservedState(Collector):
    """Series whose value is looked up at scrape time. What was never set is absent, not zero."""

    def __init__(self) -> None:
        self.engine: Callable[[], EngineSnapshot] | None = None
        self.memo: Callable[[], MemoStats] | None = None
        self.selftest: bool | None = None
        self.build: dict[str, str] | None = None

    def collect(self) -> Iterator[Metric]:
        if self.engine is not None:
            yield from _engine_families(self.engine())
        if self.memo is not None:
            yield from _memo_families(self.memo())
        if self.selftest is not None:
            yield GaugeMetricFamily(
                "scorer_selftest_passed",
                "1 if each golden query preferred its own document, else 0.",
                value=self.selftest,
            )
        if self.build is not None:
            yield InfoMetricFamily("scorer_build", "What is running.", value=self.build)


class _WithoutCreated(Collector):
    """The registry less its ``_created`` samples, which double the series and which nothing reads.

    The library's own switch for them is global to the process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def _each(metric: M, values: Iterable[str]) -> Mapping[str, M]:
    """The series of each value of a one-label metric.

    They exist from the start, since an increase from nothing is invisible to ``rate()``, and are
    looked up here, since the library takes a lock for that.
    """
    return {value: metric.labels(value) for value in values}


def _engine_families(snapshot: EngineSnapshot) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("scorer_pool_blocks", "KV blocks by state; their sum is the pool.", labels=["state"])
    blocks.add_metric(["free"], snapshot.free_blocks)
    blocks.add_metric(["cached"], snapshot.cached_blocks)
    blocks.add_metric(["pinned"], snapshot.pinned_blocks)
    yield blocks
    yield GaugeMetricFamily(
        "scorer_prefix_tree_tokens", "Tokens whose keys and values can be reused.", value=snapshot.cached_tokens
    )
    yield GaugeMetricFamily("scorer_prefix_tree_nodes", "Nodes of the prefix tree.", value=snapshot.num_nodes)
    yield GaugeMetricFamily("scorer_queue_tasks", "Tasks submitted and not ended.", value=snapshot.queued_tasks)
    yield GaugeMetricFamily(
        "scorer_queue_tokens", "Uncached tokens that those tasks still have to run.", value=snapshot.queued_tokens
    )


def _memo_families(memo: MemoStats) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "scorer_tokenise_memo_hits_total", "Texts whose tokens were in the tokeniser's memo.", value=memo.hits
    )
    yield CounterMetricFamily("scorer_tokenise_memo_misses_total", "Texts that had to be tokenised.", value=memo.misses)
    yield GaugeMetricFamily("scorer_tokenise_memo_tokens", "Tokens that the memo remembers.", value=memo.tokens_held)
