from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

import engine.runner
from engine.checkpoint import Checkpoint
from engine.errors import DeadlineExceeded, EngineFault, InvalidTask, OutOfCapacity
from engine.records import BranchEnd, GenerateResult, GenerateTask, Sampling
from engine.runner import EngineThread
from tests.helpers.paper_engine import check_cache
from tests.helpers.plain_model import plain_logits
from tests.helpers.tiny import Gate, Log, running, score, task_of, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

PROMPT = [(n * n + 3) % 50 for n in range(21)]
WARM = Sampling(temperature=3.0, seed=7)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    """Its head is not its embedding, or it would say the last token over and over."""
    tied = tiny_checkpoint(tiny_config())
    head = torch.randn(tied.weights.head.shape, generator=torch.Generator().manual_seed(5))
    return dataclasses.replace(tied, weights=dataclasses.replace(tied.weights, head=head))


class Listener:
    """Remembers what it is told; ``goes_on`` decides."""

    def __init__(self, goes_on: Callable[[int, int], bool] = lambda _branch, _token: True) -> None:
        self.said: dict[int, list[int]] = {}
        self.ends: dict[int, BranchEnd] = {}
        self._goes_on = goes_on

    def on_token(self, branch: int, token: int) -> bool:
        self.said.setdefault(branch, []).append(token)
        return self._goes_on(branch, token)

    def on_end(self, branch: int, end: BranchEnd) -> None:
        assert branch not in self.ends
        self.ends[branch] = end


def wanted(tokens: list[int] = PROMPT, *, listener: Listener | None = None, **options: Any) -> GenerateTask:
    values: dict[str, Any] = {"sampling": Sampling(), "max_tokens": 8} | options
    return GenerateTask(
        task_id="generate", namespace="a", tokens=np.array(tokens, dtype=np.int32), listener=listener or Listener(),
        **values,
    )  # fmt: skip


def generate(engine: EngineThread, task: GenerateTask) -> GenerateResult:
    return engine.generate(task).result(timeout=60)


def said(result: GenerateResult) -> list[tuple[int, ...]]:
    return [branch.token_ids for branch in result.branches]


def greedy(checkpoint: Checkpoint, tokens: list[int], count: int) -> list[int]:
    """What a decoder without a cache says, the most probable token each time."""
    found: list[int] = []
    for _ in range(count):
        found.append(int(plain_logits(checkpoint, [*tokens, *found])[-1].argmax()))
    return found


def at_rest(engine: EngineThread, *, cached_tokens: int) -> None:
    """Close the engine; nothing but ``cached_tokens`` is left, and every block is free or holds some of them."""
    engine.close(drain_s=60)
    check_cache(engine._cache)
    assert engine._cache.cached_tokens == cached_tokens
    assert engine.health().snapshot.pinned_blocks == 0


class TestTokens:
    @pytest.mark.parametrize("step_tokens", [16, 64])
    def test_greedy_is_the_most_probable_token_each_time(self, checkpoint: Checkpoint, step_tokens: int) -> None:
        listener = Listener()
        with running(tiny_engine(checkpoint, step_tokens=step_tokens)) as engine:
            result = generate(engine, wanted(listener=listener))

        expected = greedy(checkpoint, PROMPT, 8)
        assert said(result) == [tuple(expected)]
        assert listener.said == {0: expected}
        assert result.branches[0].end == listener.ends[0] == "length"
        logits = plain_logits(checkpoint, [*PROMPT, *expected])[len(PROMPT) - 1 : -1]
        judged = logits.log_softmax(-1)[range(8), expected]
        assert result.branches[0].log_probs == pytest.approx(judged.tolist(), abs=1e-4)

    def test_a_seed_reproduces_and_another_one_says_something_else(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            first, again = (said(generate(engine, wanted(sampling=WARM, num_branches=4))) for _ in range(2))
            other = said(generate(engine, wanted(sampling=dataclasses.replace(WARM, seed=8), num_branches=4)))

        assert first == again != other
        assert len(set(first)) == 4

    def test_a_seed_reproduces_whatever_else_runs_in_the_same_steps(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            alone = said(generate(engine, wanted(sampling=WARM, num_branches=3)))
        gate = Gate()
        with running(tiny_engine(checkpoint, gate)) as engine:
            first = engine.submit(task_of([make_row([9])]))
            gate.wait()  # what is submitted now waits together
            others: list[Future[Any]] = [engine.submit(task_of([make_row([*PROMPT[:n], n])])) for n in range(1, 20)]
            others.append(engine.generate(wanted(PROMPT[:9], sampling=Sampling(temperature=2.0, seed=1))))
            beside = engine.generate(wanted(sampling=WARM, num_branches=3))
            others.append(engine.generate(wanted([*PROMPT, 4, 4], sampling=WARM, num_branches=2)))
            gate.open()
            crowded = said(beside.result(timeout=60))
            for future in [first, *others]:
                future.result(timeout=60)

        assert max(step.num_tasks for step in gate.steps) > 5
        assert crowded == alone

    def test_a_branch_does_not_hang_on_how_many_there_are(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            few, many = (said(generate(engine, wanted(sampling=WARM, num_branches=n))) for n in (2, 6))

        assert many[:2] == few

    def test_an_end_token_ends_a_branch_and_is_not_part_of_it(self, checkpoint: Checkpoint) -> None:
        expected = greedy(checkpoint, PROMPT, 8)
        ends_at = next(n for n in range(2, 8) if expected[n] not in expected[:n])
        with running(tiny_engine(checkpoint)) as engine:
            (branch,) = generate(engine, wanted(end_ids=frozenset({expected[ends_at]}))).branches

        assert branch.token_ids == tuple(expected[:ends_at])
        assert branch.end == "stop"

    def test_a_listener_ends_a_branch_after_a_token(self, checkpoint: Checkpoint) -> None:
        listener = Listener(lambda branch, _: branch != 1)
        with running(tiny_engine(checkpoint)) as engine:
            result = generate(engine, wanted(listener=listener, sampling=WARM, num_branches=3, max_tokens=4))

        assert [len(tokens) for tokens in said(result)] == [4, 1, 4]
        assert listener.ends == {0: "length", 1: "stop", 2: "length"}


class TestWork:
    def test_the_prompt_is_stored_once_for_all_branches(self, checkpoint: Checkpoint) -> None:
        """21 tokens lie in 6 blocks of 4. Each of 5 branches adds at most 2 blocks for its 6 tokens that are kept."""
        log = Gate()
        with running(tiny_engine(checkpoint, log, block_size=4)) as engine:
            future = engine.generate(wanted(sampling=WARM, num_branches=5, max_tokens=7))
            for _ in range(7):
                log.wait()
                held = engine._cache.num_blocks - engine._cache.num_free
                log.pass_one()
            result = future.result(timeout=60)
            log.open()
            assert len(set(said(result))) == 5
            assert 6 + 5 <= held <= 6 + 5 * 2
            assert engine._cache.num_blocks - engine._cache.num_free == 6
            at_rest(engine, cached_tokens=21)

    def test_b016_every_token_is_computed_once_and_none_of_its_own_is_a_hit(self, checkpoint: Checkpoint) -> None:
        log = Log()
        with running(tiny_engine(checkpoint, log)) as engine:
            result = generate(engine, wanted(sampling=WARM, num_branches=5, max_tokens=7))
            engine.close(drain_s=60)

        trie = {tokens[:stop] for tokens in said(result) for stop in range(1, 7)}  # the last is never run
        stats = result.stats
        assert stats.computed_tokens == stats.prompt_tokens == len(PROMPT) + len(trie)
        assert stats.computed_tokens == sum(step.computed_tokens for step in log.steps)
        assert (stats.cached_tokens, stats.shared_tokens, stats.kept_tokens) == (0, 0, len(PROMPT))
        assert stats.generated_tokens == 5 * 7
        assert stats.num_rows == 5

    def test_branches_that_say_the_same_are_computed_once(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            result = generate(engine, wanted(num_branches=6))

        assert len(set(said(result))) == 1
        assert result.stats.computed_tokens == len(PROMPT) + 7

    def test_a_prompt_is_found_again(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            first, second = (generate(engine, wanted()) for _ in range(2))

        assert said(first) == said(second)
        assert (second.stats.cached_tokens, second.stats.kept_tokens) == (len(PROMPT) - 1, 0)
        assert second.stats.computed_tokens == 1 + 7

    def test_a_pool_under_pressure_changes_nothing_but_the_work(self, checkpoint: Checkpoint) -> None:
        tasks = [wanted([n, *PROMPT], sampling=WARM, num_branches=3) for n in range(6)]
        with running(tiny_engine(checkpoint)) as engine:
            expected = [said(generate(engine, task)) for task in tasks]
        with running(tiny_engine(checkpoint, num_blocks=9, step_tokens=16)) as engine:
            futures = [engine.generate(dataclasses.replace(task, listener=Listener())) for task in tasks]
            rows = [engine.submit(task_of([make_row([90 + n, *PROMPT, *PROMPT[:13]])])) for n in range(4)]
            found = [said(future.result(timeout=60)) for future in futures]
            for row in rows:
                row.result(timeout=60)
            engine.close(drain_s=60)
            check_cache(engine._cache)

        assert found == expected

    def test_a_long_row_does_not_wait_for_those_who_decode(self, checkpoint: Checkpoint) -> None:
        log = Gate()
        with running(tiny_engine(checkpoint, log, step_tokens=16)) as engine:
            slow = engine.generate(wanted([1, 2], max_tokens=60))
            log.wait()
            long = engine.submit(task_of([make_row([5] * 40)]))
            log.open()
            long.result(timeout=60)
            assert not slow.done()
            slow.result(timeout=60)


class TestEnds:
    def test_cancelling_frees_what_it_held(self, checkpoint: Checkpoint) -> None:
        log = Gate()
        with running(tiny_engine(checkpoint, log)) as engine:
            future = engine.generate(wanted(sampling=WARM, num_branches=4, max_tokens=60))
            for _ in range(3):
                log.wait()
                log.pass_one()
            log.wait()
            future.cancel()
            log.open()
            at_rest(engine, cached_tokens=21)

        assert [task.end for task in log.tasks] == ["cancelled"]
        assert log.tasks[0].generated_tokens == 4 * 3 + 4

    def test_a_deadline_answers_what_is_there(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = _Clock()
        monkeypatch.setattr(engine.runner, "time", clock)
        listener = Listener(clock.late_after(3))
        with running(tiny_engine(checkpoint)) as thread:
            result = generate(thread, wanted(listener=listener, deadline_s=time.monotonic() + 500))
            at_rest(thread, cached_tokens=21)

        (branch,) = result.branches
        assert (len(branch.token_ids), branch.end, result.stats.end) == (3, "deadline", "partial")

    def test_a_deadline_before_the_first_token_is_an_error(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine, pytest.raises(DeadlineExceeded):
            generate(engine, wanted(deadline_s=time.monotonic() - 1))

    def test_a_listener_that_raises_loses_its_task_alone(self, checkpoint: Checkpoint) -> None:
        def fail(_branch: int, _token: int) -> bool:
            raise ArithmeticError("no such token")

        with running(tiny_engine(checkpoint)) as engine:
            with pytest.raises(EngineFault, match="no such token"):
                generate(engine, wanted(listener=Listener(fail)))
            assert len(said(generate(engine, wanted()))[0]) == 8
            at_rest(engine, cached_tokens=21)

    def test_b010_logits_that_are_not_finite_end_a_branch(self, checkpoint: Checkpoint) -> None:
        head = checkpoint.weights.head.clone()
        head[0] = torch.nan
        broken = dataclasses.replace(checkpoint, weights=dataclasses.replace(checkpoint.weights, head=head))
        with running(tiny_engine(broken)) as engine:
            result = generate(engine, wanted(num_branches=2))

        assert [(branch.token_ids, branch.end) for branch in result.branches] == [((), "non_finite")] * 2

    def test_it_is_admitted_for_the_longest_branches_that_may_come(self, checkpoint: Checkpoint) -> None:
        log = Gate()
        with running(tiny_engine(checkpoint, log, max_queued_tokens=100)) as engine:
            first = engine.generate(wanted(num_branches=2, max_tokens=30))
            log.wait()
            with pytest.raises(OutOfCapacity, match=r"holds 81 tokens and 20 more"):
                engine.submit(task_of([make_row([1] * 20)]))
            log.open()
            first.result(timeout=60)
            score(engine, [make_row([1] * 20)])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_branches": 0}, "num_branches is 0"),
            ({"max_tokens": 0}, "max_tokens is 0"),
            ({"max_tokens": 4096}, "21 tokens and 4096 to come"),
            ({"sampling": Sampling(temperature=-1.0)}, "temperature is -1.0"),
            ({"sampling": Sampling(temperature=float("nan"))}, "temperature is nan"),
            ({"sampling": Sampling(top_p=0.0)}, "top_p is 0.0"),
            ({"sampling": Sampling(top_k=-1)}, "top_k is -1"),
            ({"sampling": Sampling(seed=2**63)}, "seed is"),
        ],
    )
    def test_what_can_never_run_is_refused(self, checkpoint: Checkpoint, changes: dict[str, Any], message: str) -> None:
        with running(tiny_engine(checkpoint)) as engine, pytest.raises(InvalidTask, match=message):
            engine.generate(wanted(**changes))

    @pytest.mark.parametrize("tokens", [[], [97], [-1]])
    def test_a_prompt_outside_the_vocabulary_is_refused(self, checkpoint: Checkpoint, tokens: list[int]) -> None:
        with running(tiny_engine(checkpoint)) as engine, pytest.raises(InvalidTask):
            engine.generate(wanted(tokens))


class _Clock:
    """The engine's clock, put far ahead after some tokens."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def perf_counter(self) -> float:
        return time.perf_counter()

    def late_after(self, tokens: int) -> Callable[[int, int], bool]:
        left = iter(range(tokens - 1, -1, -1))

        def goes_on(_branch: int, _token: int) -> bool:
            if next(left) == 0:
                self._ahead = 1000.0
            return True

        return goes_on
