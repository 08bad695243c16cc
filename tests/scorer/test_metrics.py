"""What a scrape says, given what was reported."""

from __future__ import annotations

import random
import threading
import weakref
from collections import Counter
from typing import get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine import EngineObserver, EngineSnapshot, StepStats, TaskStats
from engine.records import TaskEnd
from scorer.metrics import ItemOutcome, Metrics, Stage
from scorer.tokens.text_tokens import MemoStats

OPENMETRICS = "application/openmetrics-text"
PROMETHEUS_2_ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


MEMO = MemoStats(hits=7, misses=3, tokens_held=640)


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, _ = metrics.exposition(None)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return scrape(metrics).get((name, frozenset(labels.items())))


def task(**fields: object) -> TaskStats:
    return TaskStats(**({"task_id": "t", "end": "ok", "num_rows": 1} | fields))  # type: ignore[arg-type]


def step(**fields: object) -> StepStats:
    zero = dict.fromkeys(StepStats.__slots__, 0)
    return StepStats(**(zero | fields))  # type: ignore[arg-type]


def test_is_an_engine_observer() -> None:
    observer: EngineObserver = Metrics()

    observer.on_step(step(computed_tokens=5))
    observer.on_task(task(prompt_tokens=5))


@pytest.mark.parametrize("seed", range(5))
def test_token_counters_equal_the_sum_of_the_records(seed: int) -> None:
    rng = random.Random(seed)
    metrics, want = Metrics(), Counter[str]()

    for _ in range(50):
        cached, shared, computed, recomputed, rows = (rng.randrange(1000) for _ in range(5))
        metrics.on_task(
            task(
                num_rows=rows,
                prompt_tokens=cached + shared + computed,
                cached_tokens=cached,
                shared_tokens=shared,
                computed_tokens=computed,
                recomputed_tokens=recomputed,
            )
        )
        want.update(cached=cached, shared=shared, computed=computed, recomputed=recomputed, rows=rows)
        kept, evicted, ran = (rng.randrange(1000) for _ in range(3))
        metrics.on_step(step(kept_tokens=kept, evicted_tokens=evicted, computed_tokens=ran))
        want.update(kept=kept, evicted=evicted, ran=ran)

    assert value(metrics, "scorer_cached_tokens_total") == want["cached"]
    assert value(metrics, "scorer_shared_tokens_total") == want["shared"]
    assert value(metrics, "scorer_computed_tokens_total") == want["computed"]
    assert value(metrics, "scorer_recomputed_tokens_total") == want["recomputed"]
    assert value(metrics, "scorer_prompt_tokens_total") == want["cached"] + want["shared"] + want["computed"]
    assert value(metrics, "scorer_kept_tokens_total") == want["kept"]
    assert value(metrics, "scorer_evicted_tokens_total") == want["evicted"]
    assert value(metrics, "scorer_step_tokens_sum") == want["ran"]
    assert value(metrics, "scorer_task_rows_sum") == want["rows"]


def test_times_of_a_step_are_told_apart() -> None:
    metrics = Metrics()

    metrics.on_step(step(schedule_s=0.5, prefill_s=2.0, readout_s=0.25, commit_s=0.125))

    for phase, seconds in {"schedule": 0.5, "prefill": 2.0, "readout": 0.25, "commit": 0.125}.items():
        assert value(metrics, "scorer_step_duration_seconds_sum", phase=phase) == seconds


@pytest.mark.parametrize("end", get_args(TaskEnd))
def test_a_task_counts_once_under_its_end(end: TaskEnd) -> None:
    metrics = Metrics()

    metrics.on_task(task(end=end))

    counts = {other: value(metrics, "scorer_tasks_total", end=other) for other in get_args(TaskEnd)}
    assert counts == dict.fromkeys(get_args(TaskEnd), 0) | {end: 1}


def test_failures_have_their_own_label_and_stay_out_of_ttft() -> None:
    metrics = Metrics()

    for _ in range(8):
        metrics.observe_ttft(0.3)
        metrics.observe_request(route="/rerank", outcome="ok", seconds=0.3)
    for _ in range(2):
        metrics.observe_request(route="/rerank", outcome="fault", seconds=0.3)

    assert value(metrics, "scorer_ttft_seconds_count") == 8
    assert value(metrics, "scorer_ttft_seconds_bucket", le="0.25") == 0
    assert value(metrics, "scorer_ttft_seconds_bucket", le="0.5") == 8
    assert value(metrics, "scorer_ttft_seconds_sum") == pytest.approx(2.4)
    assert value(metrics, "scorer_request_duration_seconds_count", route="/rerank", outcome="ok") == 8
    assert value(metrics, "scorer_request_duration_seconds_count", route="/rerank", outcome="fault") == 2


@pytest.mark.parametrize(("limit_s", "top"), [(1.0, 60.0), (60.0, 60.0), (90.5, 90.5), (600.0, 600.0)])
def test_top_bucket_covers_the_request_limit(limit_s: float, top: float) -> None:
    metrics = Metrics(request_limit_s=limit_s)

    metrics.observe_request(route="/rerank", outcome="ok", seconds=limit_s)

    edges = {float(dict(labels)["le"]) for name, labels in scrape(metrics) if name == "scorer_ttft_seconds_bucket"}
    assert max(edges - {float("inf")}) == top
    assert (
        value(metrics, "scorer_request_duration_seconds_bucket", route="/rerank", outcome="ok", le=str(float(top))) == 1
    )


def test_a_call_of_milliseconds_is_resolved() -> None:
    metrics = Metrics()

    metrics.observe_stage("tokenise", 0.0008)
    metrics.observe_stage("tokenise", 0.004)

    assert value(metrics, "scorer_stage_duration_seconds_bucket", stage="tokenise", le="0.001") == 1
    assert value(metrics, "scorer_stage_duration_seconds_bucket", stage="tokenise", le="0.005") == 2


def test_series_of_closed_sets_start_at_zero() -> None:
    metrics = Metrics()

    for outcome in get_args(ItemOutcome):
        assert value(metrics, "scorer_items_total", outcome=outcome) == 0
    for stage in get_args(Stage):
        assert value(metrics, "scorer_stage_duration_seconds_count", stage=stage) == 0
    for end in get_args(TaskEnd):
        assert value(metrics, "scorer_tasks_total", end=end) == 0


def test_items_count_by_outcome() -> None:
    metrics = Metrics()

    metrics.count_items("ok", 30)
    metrics.count_items("non_finite", 2)
    metrics.count_items("ok", 1)

    assert value(metrics, "scorer_items_total", outcome="ok") == 31
    assert value(metrics, "scorer_items_total", outcome="non_finite") == 2


def test_what_nobody_reported_is_absent_rather_than_zero() -> None:
    names = {name for name, _ in scrape(Metrics())}

    assert "scorer_selftest_passed" not in names
    assert "scorer_build_info" not in names
    assert not {name for name in names if name.startswith(("scorer_pool", "scorer_queue", "scorer_tokenise_memo"))}


@pytest.mark.parametrize(("passed", "number"), [(True, 1), (False, 0)])
def test_selftest_is_published(passed: bool, number: int) -> None:
    metrics = Metrics()

    metrics.set_selftest(passed)

    assert value(metrics, "scorer_selftest_passed") == number


def test_engine_is_read_at_every_scrape_and_not_before() -> None:
    metrics = Metrics()
    snapshots = [
        EngineSnapshot(num_blocks=10, free_blocks=7, cached_blocks=2, pinned_blocks=1, cached_tokens=40),
        EngineSnapshot(num_blocks=10, free_blocks=1, cached_blocks=9, num_nodes=6, queued_tasks=3, queued_tokens=999),
    ]
    reads = iter(snapshots)
    metrics.watch_engine(lambda: next(reads))

    first, second = scrape(metrics), scrape(metrics)

    def blocks(seen: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> dict[str, float]:
        return {dict(labels)["state"]: v for (name, labels), v in seen.items() if name == "scorer_pool_blocks"}

    none: frozenset[tuple[str, str]] = frozenset()
    assert blocks(first) == {"free": 7, "cached": 2, "pinned": 1}
    assert blocks(second) == {"free": 1, "cached": 9, "pinned": 0}
    assert first["scorer_prefix_tree_tokens", none] == 40
    assert second["scorer_prefix_tree_nodes", none] == 6
    assert second["scorer_queue_tasks", none] == 3
    assert second["scorer_queue_tokens", none] == 999
    assert next(reads, None) is None


def test_memo_is_published() -> None:
    metrics = Metrics()
    metrics.watch_memo(lambda: MEMO)

    assert value(metrics, "scorer_tokenise_memo_hits_total") == 7
    assert value(metrics, "scorer_tokenise_memo_misses_total") == 3
    assert value(metrics, "scorer_tokenise_memo_tokens") == 640


def test_build_info_is_one_series_with_the_latest_facts() -> None:
    metrics = Metrics()
    facts = {
        "version": "1",
        "model": "m",
        "revision": "abc",
        "template": "t@1",
        "dtype": "bfloat16",
        "linear_dtype": "bfloat16",
        "kv_dtype": "int8",
        "kernels": "cpu",
    }
    metrics.set_build_info(**(facts | {"revision": "old"}))

    metrics.set_build_info(**facts)

    series = {labels: v for (name, labels), v in scrape(metrics).items() if name == "scorer_build_info"}
    assert series == {frozenset(facts.items()): 1}


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/plain;version=bogus", "application/json"])
def test_text_unless_openmetrics_is_asked_for(accept: str | None) -> None:
    body, content_type = Metrics().exposition(accept)

    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert list(parse_text(body.decode()))
    assert b"# EOF" not in body


@pytest.mark.parametrize(
    "accept",
    [OPENMETRICS, PROMETHEUS_2_ACCEPT, f"text/plain, {OPENMETRICS.upper()} ; q=1", f"{OPENMETRICS};version=bogus"],
)
def test_openmetrics_where_accept_names_it(accept: str) -> None:
    metrics = Metrics()
    metrics.set_build_info(
        version="1", model="m", revision="r", template="t", dtype="d", linear_dtype="l", kv_dtype="q", kernels="k"
    )
    metrics.watch_memo(lambda: MEMO)

    body, content_type = metrics.exposition(accept)

    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]  # the library left it out
    assert {family.name for family in families} >= {"scorer_build", "scorer_tokenise_memo_hits"}


@pytest.mark.parametrize("accept", [None, OPENMETRICS])
def test_no_creation_times(accept: str | None) -> None:
    assert b"_created" not in Metrics().exposition(accept)[0]


def test_two_services_do_not_share_series() -> None:
    first, second = Metrics(), Metrics()

    first.count_items("ok", 5)

    assert value(second, "scorer_items_total", outcome="ok") == 0


def test_a_request_that_ends_leaves_nothing_to_be_counted_later() -> None:
    class Seconds(float):
        """Can be asked whether it is still referred to."""

    metrics = Metrics()
    seconds = Seconds(0.5)
    kept = weakref.ref(seconds)
    metrics.observe_ttft(seconds)
    del seconds
    assert kept() is not None

    metrics.observe_request(route="/v1/score", outcome="ok", seconds=1.0)

    assert kept() is None
    assert value(metrics, "scorer_ttft_seconds_sum") == 0.5


def test_no_report_is_lost_between_threads() -> None:
    metrics = Metrics()

    def report() -> None:
        for _ in range(500):
            metrics.on_task(task(prompt_tokens=3, computed_tokens=3))
            metrics.observe_stage("queue", 0.001)

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value(metrics, "scorer_prompt_tokens_total") == 6000
    assert value(metrics, "scorer_tasks_total", end="ok") == 2000
    assert value(metrics, "scorer_stage_duration_seconds_count", stage="queue") == 2000
