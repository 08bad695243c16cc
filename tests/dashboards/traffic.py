"""Traffic whose numbers are known, told to a ``Metrics`` as the service and the engine tell it."""

from __future__ import annotations

from dataclasses import dataclass

from engine import EngineSnapshot, StepStats, TaskStats
from scorer.metrics import Metrics
from scorer.tokens.text_tokens import MemoStats

ROUTES = ("/v1/batches/score", "/rerank")


class Memo:
    """Three of four texts are found."""

    def __init__(self) -> None:
        self.stats = MemoStats(hits=0, misses=0, tokens_held=0)

    def grow(self) -> None:
        seen = self.stats
        self.stats = MemoStats(hits=seen.hits + 3, misses=seen.misses + 1, tokens_held=seen.tokens_held + 64)


SNAPSHOT = EngineSnapshot(
    num_blocks=64,
    free_blocks=20,
    cached_blocks=40,
    pinned_blocks=4,
    cached_tokens=600,
    num_nodes=12,
    queued_tasks=2,
    queued_tokens=300,
)


def start(metrics: Metrics) -> Memo:
    """What the service reports once, when it is ready; returns the memo that ``send`` grows."""
    memo = Memo()
    metrics.watch_engine(lambda: SNAPSHOT)
    metrics.watch_memo(lambda: memo.stats)
    metrics.set_selftest(passed=True)
    metrics.set_build_info(
        version="0.1.0",
        model="tiny",
        revision="abc123",
        template="generic@1",
        dtype="float32",
        linear_dtype="float32",
        kv_dtype="float32",
        kernels="reference",
    )
    return memo


@dataclass(frozen=True, slots=True)
class Sent:
    """What one round adds, by metric."""

    prompt_tokens: int = 1000
    cached_tokens: int = 600
    shared_tokens: int = 150
    computed_tokens: int = 250
    kept_tokens: int = 200
    evicted_tokens: int = 40
    generated_tokens: int = 30
    scored: int = 10
    unscored: int = 2
    answered: int = 3
    failed: int = 1


def send(metrics: Metrics, memo: Memo) -> Sent:
    """One round: three answered requests on two routes and one that failed with its pairs."""
    sent = Sent()
    memo.grow()
    metrics.on_task(
        TaskStats(
            task_id="warm",
            end="ok",
            num_rows=sent.scored,
            prompt_tokens=sent.prompt_tokens,
            cached_tokens=sent.cached_tokens,
            shared_tokens=sent.shared_tokens,
            computed_tokens=sent.computed_tokens,
            kept_tokens=sent.kept_tokens,
            generated_tokens=sent.generated_tokens,
        )
    )
    metrics.on_task(TaskStats(task_id="lost", end="fault", num_rows=sent.unscored))
    metrics.on_step(
        StepStats(
            num_rows=sent.scored,
            num_tasks=1,
            computed_tokens=sent.computed_tokens,
            kept_tokens=sent.kept_tokens,
            read_rows=sent.scored,
            evicted_tokens=sent.evicted_tokens,
            num_spans=4,
            schedule_s=0.001,
            prefill_s=0.02,
            readout_s=0.002,
            commit_s=0.001,
        )
    )
    for number in range(sent.answered):
        metrics.observe_request(route=ROUTES[number % len(ROUTES)], outcome="ok", seconds=0.04)
        metrics.observe_ttft(0.03)
        for stage in ("tokenise", "queue", "prefill", "readout", "respond"):
            metrics.observe_stage(stage, 0.004)
    for _ in range(sent.failed):
        metrics.observe_request(route=ROUTES[0], outcome="fault", seconds=0.2)
        metrics.count_error("engine_fault")
    metrics.count_items("ok", sent.scored)
    metrics.count_items("failed", sent.unscored)
    return sent
