"""Work is unique tokens: in the running engine, whatever the budget, the order and the company."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint import Checkpoint
from engine.records import ScoreResult
from tests.helpers.paper_engine import cached_prefixes
from tests.helpers.tiny import Log, running, score, task_of, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import RowSpec, batches, unique_work

VOCABULARY = 97


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(tiny_config())


def assert_usage_adds_up(result: ScoreResult) -> None:
    for row in result.rows:
        usage = row.usage
        assert usage.prompt_tokens == usage.cached_tokens + usage.shared_tokens + usage.computed_tokens
    assert result.stats.computed_tokens == sum(row.usage.computed_tokens for row in result.rows)


@settings(deadline=None, max_examples=40)
@given(
    tasks=batches(num_batches=4),
    namespaces=st.lists(st.sampled_from("ab"), min_size=4, max_size=4),
    step_tokens=st.sampled_from([16, 19, 1000]),
)
def test_a_task_computes_what_nobody_has_computed(
    checkpoint: Checkpoint, tasks: list[list[RowSpec]], namespaces: list[str], step_tokens: int
) -> None:
    log = Log()
    with running(tiny_engine(checkpoint, log, step_tokens=step_tokens)) as engine:
        total = 0
        for specs, namespace in zip(tasks, namespaces, strict=False):
            cached = cached_prefixes(engine._cache)

            result = score(engine, [spec.row() for spec in specs], namespace=namespace)

            assert result.stats.computed_tokens == unique_work(specs, namespace, cached)
            assert_usage_adds_up(result)
            total += result.stats.computed_tokens
    assert sum(step.computed_tokens for step in log.steps) == total
    assert sum(task.computed_tokens for task in log.tasks) == total


@pytest.mark.parametrize("step_tokens", [64, 300, 8192])
@pytest.mark.parametrize("keep", [0, 1000])
def test_a_hundred_rows_compute_their_cold_prefix_once(checkpoint: Checkpoint, step_tokens: int, keep: int) -> None:
    rng = random.Random(0)
    prefix = tuple(rng.randrange(VOCABULARY) for _ in range(1000))
    specs = [
        RowSpec((*prefix, row % 97, row // 97, *(rng.randrange(VOCABULARY) for _ in range(row % 13))), keep=keep)
        for row in range(100)
    ]
    log = Log()
    with running(tiny_engine(checkpoint, log, num_blocks=600, step_tokens=step_tokens)) as engine:
        result = score(engine, [spec.row() for spec in specs])

    assert result.stats.computed_tokens == unique_work(specs, "a", ())
    assert result.stats.computed_tokens == 1000 + sum(len(spec.tokens) - 1000 for spec in specs) - 3
    assert max(step.computed_tokens for step in log.steps) <= step_tokens
    assert sum(row.usage.computed_tokens >= 1000 for row in result.rows) == 1
    assert_usage_adds_up(result)


def test_callers_that_miss_the_same_prefix_at_once_compute_it_once(checkpoint: Checkpoint) -> None:
    rng = random.Random(1)
    prefix = tuple(rng.randrange(VOCABULARY) for _ in range(200))
    specs = [RowSpec((*prefix, caller, caller), keep=200) for caller in range(8)]
    results: dict[int, ScoreResult] = {}
    with running(tiny_engine(checkpoint, step_tokens=64)) as engine:

        def call(caller: int) -> None:
            task = task_of([specs[caller].row()], task_id=str(caller))
            results[caller] = engine.submit(task).result(timeout=60)

        callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    assert sum(result.stats.computed_tokens for result in results.values()) == 200 + 8 * 2
    for result in results.values():
        assert_usage_adds_up(result)


def test_b022_a_namespace_pays_for_what_another_has_in_the_cache(checkpoint: Checkpoint) -> None:
    row = RowSpec(tuple(range(50)), keep=50).row()
    with running(tiny_engine(checkpoint)) as engine:
        usages = [score(engine, [row], namespace=name).rows[0].usage for name in ("a", "b", "b", "a")]

    assert [usage.cached_tokens for usage in usages] == [0, 0, 49, 49]
