from __future__ import annotations

import concurrent.futures
import itertools
import logging
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import engine.runner
from engine.checkpoint import Checkpoint
from engine.errors import DeadlineExceeded, EngineClosed, EngineFault, InvalidTask, OutOfCapacity
from engine.prefix_cache import PrefixCache
from engine.records import (
    EngineSnapshot,
    LabelOutcome,
    LabelReadout,
    LikelihoodReadout,
    Row,
    ScoreResult,
    ScoreTask,
    StepStats,
    TaskEnd,
    TaskStats,
    TokenIds,
    Unscored,
)
from engine.runner import EngineThread
from engine.scheduler import Scheduler
from engine.sequence import TaskState
from kernels.cpu import CpuKernels
from tests.helpers.paper_engine import check_cache
from tests.helpers.plain_model import numbers, plain_numbers
from tests.helpers.tiny import Gate, Log, running, score, task_of, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tiny import unstarted_engine as unstarted
from tests.helpers.tries import RowSpec, make_row

VOCABULARY = 97


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(tiny_config())


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def logits(result: ScoreResult) -> list[float]:
    """Label logits of every row, end to end."""
    values: list[float] = []
    for row in result.rows:
        assert isinstance(row.outcome, LabelOutcome)
        values += row.outcome.logits
    return values


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        pause.wait(0.001)


def at_rest(engine: EngineThread) -> EngineSnapshot:
    """Close the engine, hold its books against their promises, and return its last snapshot."""
    engine.close(drain_s=60)
    check_cache(engine._cache)
    snapshot = engine.health().snapshot
    assert snapshot.free_blocks + snapshot.cached_blocks + snapshot.pinned_blocks == snapshot.num_blocks
    assert (snapshot.pinned_blocks, snapshot.queued_tasks, snapshot.queued_tokens) == (0, 0, 0)
    return snapshot


def break_once(monkeypatch: pytest.MonkeyPatch, *, call: int, error: Exception | None = None) -> None:
    """Make the write to the pool of one layer raise: the ``call``-th from now, 0 the first."""
    calls = itertools.count()
    whole = CpuKernels.store_kv

    def store_kv(self: CpuKernels, *inputs: Any) -> None:
        if next(calls) == call:
            raise error or ArithmeticError("this layer is broken")
        whole(self, *inputs)

    monkeypatch.setattr(CpuKernels, "store_kv", store_kv)


class Clock:
    """The engine's clock, which a test can put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def perf_counter(self) -> float:
        return time.perf_counter()


class TestRefusals:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            (Row(tokens=ids(), readout=LabelReadout(label_ids=(1,)), keep_tokens=0), "row 1 has 0 tokens"),
            (make_row([1, 2, -1]), "row 1 has token -1; ids are 0 to 96"),
            (make_row([1, 2, VOCABULARY]), "row 1 has token 97; ids are 0 to 96"),
            (make_row([1, 2], keep=3), "row 1 keeps 3 tokens; it has 2"),
            (make_row([1, 2], keep=-1), "row 1 keeps -1 tokens; it has 2"),
        ],
    )
    def test_a_row_that_cannot_run_is_named(self, checkpoint: Checkpoint, row: Row, message: str) -> None:
        with (
            running(tiny_engine(checkpoint)) as engine,
            pytest.raises(InvalidTask, match=message) as refused,
        ):
            engine.submit(task_of([make_row([1]), row]))

        assert refused.value.row == 1
        assert not refused.value.retryable

    @pytest.mark.parametrize("label_ids", [(-1,), (97,), (107,), (2**31,), (2**63,), (), (5, 5), (1, 2, -(2**40))])
    def test_b012_label_ids_outside_of_the_logits_are_refused_and_nobody_else_notices(
        self, checkpoint: Checkpoint, label_ids: tuple[int, ...]
    ) -> None:
        good = make_row([1, 2, 3])
        bad = Row(tokens=ids(1, 2, 3), readout=LabelReadout(label_ids=label_ids), keep_tokens=0)
        with running(tiny_engine(checkpoint)) as engine:
            before = logits(score(engine, [good]))
            with pytest.raises(InvalidTask, match="row 1"):
                engine.submit(task_of([good, bad]))

            assert logits(score(engine, [good])) == pytest.approx(before, abs=1e-4)
            assert engine.health().alive

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (ids(), "row 0 has 0 target tokens; 1 to 3 are possible"),
            (ids(1, 1, 1, 1), "row 0 has 4 target tokens; 1 to 3 are possible"),
            (ids(1, 97), "row 0 reads token 97; ids are 0 to 96"),
            (ids(-1), "row 0 reads token -1; ids are 0 to 96"),
        ],
    )
    def test_targets_that_cannot_be_read_are_refused(
        self, checkpoint: Checkpoint, target: TokenIds, message: str
    ) -> None:
        row = Row(tokens=ids(1, 2, 3), readout=LikelihoodReadout(target_ids=target), keep_tokens=0)
        with running(tiny_engine(checkpoint)) as engine, pytest.raises(InvalidTask, match=message):
            engine.submit(task_of([row]))

    def test_a_task_without_rows_is_refused(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine, pytest.raises(InvalidTask, match="no rows"):
            engine.submit(task_of([]))

    def test_b024_a_row_larger_than_the_pool_is_refused_with_both_numbers_and_the_next_one_runs(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        large = tiny_checkpoint(tiny_config(max_positions=8192))
        with running(tiny_engine(large, num_blocks=64, block_size=16)) as engine:
            assert "rows are limited to the 1024 tokens of the pool, not 8192" in caplog.text
            with pytest.raises(InvalidTask, match="row 0 has 1500 tokens; the limit is 1 to 1024"):
                engine.submit(task_of([make_row([1] * 1500)]))

            assert len(score(engine, [make_row([1] * 20)]).rows) == 1

    @pytest.mark.parametrize("limit", [None, 30])
    def test_the_longest_row_is_the_operator_s_or_the_model_s(self, limit: int | None) -> None:
        small = tiny_checkpoint(tiny_config(max_positions=50))
        with running(tiny_engine(small, max_row_tokens=limit)) as engine:
            longest = limit or 50
            assert engine.info.max_row_tokens == longest
            assert score(engine, [make_row([1] * longest)]).rows[0].usage.prompt_tokens == longest
            with pytest.raises(InvalidTask, match=f"has {longest + 1} tokens; the limit is 1 to {longest}"):
                engine.submit(task_of([make_row([1] * (longest + 1))]))


class TestQueueLimit:
    def test_a_full_queue_refuses_says_when_to_come_back_and_has_room_again_later(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, max_queued_tokens=30)) as engine:
            for _ in range(2):
                first = engine.submit(task_of([make_row([1] * 10)]))
                gate.wait()
                second = engine.submit(task_of([make_row([2] * 20)]))
                with pytest.raises(
                    OutOfCapacity, match="the queue holds 30 tokens and 1 more exceed its limit of 30"
                ) as full:
                    engine.submit(task_of([make_row([3])]))

                assert full.value.retryable
                assert 1 <= full.value.retry_after_s <= 60
                assert full.value.retry_after_s == int(full.value.retry_after_s)
                gate.pass_one()
                gate.wait()
                gate.pass_one()
                concurrent.futures.wait([first, second], timeout=60)
                wait_until(lambda: not engine._unended)
            gate.open()

    def test_a_single_larger_task_is_accepted_when_nothing_waits(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint, max_queued_tokens=30)) as engine:
            assert len(score(engine, [make_row([1] * 40)]).rows) == 1

    def test_counts_what_rows_share_once(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, max_queued_tokens=40)) as engine:
            engine.submit(task_of([make_row([1])]))
            gate.wait()

            engine.submit(task_of([make_row([*[2] * 30, token]) for token in range(9)]))
            with pytest.raises(OutOfCapacity, match="the queue holds 40 tokens"):
                engine.submit(task_of([make_row([1])]))
            gate.open()

    def test_a_refused_task_leaves_nothing_behind(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        engine = tiny_engine(checkpoint, gate, max_queued_tokens=30)
        with running(engine):
            first = engine.submit(task_of([make_row([1] * 10)]))
            gate.wait()
            for _ in range(50):
                with pytest.raises(OutOfCapacity):
                    engine.submit(task_of([make_row([3] * 21)]))
            second = engine.submit(task_of([make_row([2] * 20)]))
            gate.open()

            assert len(first.result(timeout=60).rows) == len(second.result(timeout=60).rows) == 1
        assert len(gate.tasks) == 2

    def test_what_arrives_while_a_step_runs_is_told_at_once(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate)) as engine:
            engine.submit(task_of([make_row([1] * 10)]))
            gate.wait()
            engine.submit(task_of([make_row([2] * 20), make_row([*[2] * 20, 3])]))

            snapshot = engine.health().snapshot
            assert (snapshot.queued_tasks, snapshot.queued_tokens) == (2, 21)  # the step has run what the first one had
            gate.open()
            at_rest(engine)


class TestDeadlines:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(engine.runner, "time", clock)
        return clock

    def test_one_that_has_passed_ends_the_task_before_any_work(self, checkpoint: Checkpoint) -> None:
        log = Log()
        with running(tiny_engine(checkpoint, log)) as engine:
            future = engine.submit(task_of([make_row([1, 2])], deadline_s=time.monotonic() - 1))

            with pytest.raises(DeadlineExceeded, match="before a row was scored"):
                future.result(timeout=60)
            at_rest(engine)
        assert not log.steps
        assert [task.end for task in log.tasks] == ["deadline"]

    def test_one_that_passes_between_rows_gives_what_is_scored(self, checkpoint: Checkpoint, clock: Clock) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, step_tokens=16)) as engine:
            rows = [make_row([1] * 14), make_row([2] * 14)]
            future = engine.submit(task_of(rows, deadline_s=time.monotonic() + 1000))
            gate.wait()
            clock.ahead = 2000
            gate.open()

            result = future.result(timeout=60)
            at_rest(engine)
        assert isinstance(result.rows[0].outcome, LabelOutcome)
        assert result.rows[1].outcome == Unscored(reason="deadline")
        assert result.rows[1].usage.computed_tokens == 0
        assert result.stats.end == "partial"
        assert [task.end for task in gate.tasks] == ["partial"]

    def test_one_that_passes_within_the_first_row_gives_nothing_and_leaves_nothing_held(
        self, checkpoint: Checkpoint, clock: Clock
    ) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, step_tokens=16)) as engine:
            future = engine.submit(task_of([make_row([1] * 40)], deadline_s=time.monotonic() + 1000))
            gate.wait()
            clock.ahead = 2000
            gate.open()

            with pytest.raises(DeadlineExceeded):
                future.result(timeout=60)
            at_rest(engine)
        assert (gate.tasks[0].end, gate.tasks[0].computed_tokens) == ("deadline", 16)

    def test_one_in_the_future_changes_nothing(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            future = engine.submit(task_of([make_row([1, 2])], deadline_s=time.monotonic() + 1000))

            assert future.result(timeout=60).stats.end == "ok"

    def test_of_a_waiting_task_does_not_disturb_the_one_that_runs(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, step_tokens=16)) as engine:
            first = engine.submit(task_of([make_row([1] * 40)]))
            gate.wait()
            late = engine.submit(task_of([make_row([2] * 5)], deadline_s=time.monotonic() - 1))
            gate.open()

            assert first.result(timeout=60).stats.end == "ok"
            with pytest.raises(DeadlineExceeded):
                late.result(timeout=60)


class TestCancellation:
    def test_half_way_frees_everything_and_the_next_request_is_as_good(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        row, other = make_row([1] * 40), make_row([1] * 10)
        with running(tiny_engine(checkpoint, step_tokens=16)) as fresh:
            expected = logits(score(fresh, [other]))
        with running(tiny_engine(checkpoint, gate, step_tokens=16)) as engine:
            future = engine.submit(task_of([row]))
            gate.wait()
            assert future.cancel()
            gate.open()

            assert logits(score(engine, [other])) == pytest.approx(expected, abs=1e-4)
            assert at_rest(engine).cached_tokens == 16
        assert [task.end for task in gate.tasks] == ["cancelled", "ok"]

    def test_while_waiting_costs_nothing(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate)) as engine:
            first = engine.submit(task_of([make_row([1])]))
            gate.wait()
            given_up = [engine.submit(task_of([make_row([2] * 30)], task_id=str(n))) for n in range(20)]
            assert all(future.cancel() for future in given_up)
            gate.open()

            first.result(timeout=60)
            at_rest(engine)
        assert len(gate.steps) == 1
        assert sorted(task.end for task in gate.tasks) == ["cancelled"] * 20 + ["ok"]

    def test_is_seen_by_those_who_wait_on_several_futures(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate)) as engine:
            engine.submit(task_of([make_row([1])]))
            gate.wait()
            given_up = engine.submit(task_of([make_row([2])]))
            given_up.cancel()
            gate.open()

            done, waiting = concurrent.futures.wait([given_up], timeout=60)
            assert (done, waiting) == ({given_up}, set())

    def test_in_the_step_that_finishes_the_task_still_counts_as_one(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate)) as engine:
            future = engine.submit(task_of([make_row([1, 2])]))
            gate.wait()
            assert future.cancel()
            gate.open()

            concurrent.futures.wait([future], timeout=60)
            at_rest(engine)
        assert [task.end for task in gate.tasks] == ["cancelled"]

    def test_after_the_result_is_too_late(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint)) as engine:
            future = engine.submit(task_of([make_row([1])]))
            future.result(timeout=60)

            assert not future.cancel()


class TestFaults:
    def test_b023_leave_nothing_behind_and_the_same_request_is_computed_afresh(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deep = tiny_checkpoint(tiny_config(num_layers=6))
        first = make_row([7, *range(60)])
        second = make_row([7, *range(47), 5, 5])
        with running(tiny_engine(deep)) as sound:
            expected = logits(score(sound, [first])), logits(score(sound, [second], namespace="b"))
        with running(tiny_engine(deep)) as engine:
            break_once(monkeypatch, call=5)
            with pytest.raises(EngineFault, match="this layer is broken") as fault:
                score(engine, [first])

            assert isinstance(fault.value.__cause__, ArithmeticError)
            assert engine.health().accepting
            again = score(engine, [first])
            assert (again.rows[0].usage.cached_tokens, logits(again)) == (0, expected[0])
            assert logits(score(engine, [second])) == pytest.approx(expected[1], abs=1e-4)
            at_rest(engine)

    def test_b023_of_a_later_chunk_give_back_what_that_chunk_took(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log()
        with running(tiny_engine(checkpoint, log, step_tokens=16)) as engine:
            break_once(monkeypatch, call=2 * checkpoint.config.num_layers)
            with pytest.raises(EngineFault):
                score(engine, [make_row([1] * 60)])

            assert at_rest(engine).cached_tokens == 32
        assert (log.tasks[0].end, log.tasks[0].num_steps, log.tasks[0].computed_tokens) == ("fault", 2, 32)

    def test_end_the_tasks_of_their_step_and_no_others(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, step_tokens=16)) as engine:
            plug = engine.submit(task_of([make_row([9])]))
            gate.wait()
            lost = [engine.submit(task_of([make_row([token] * 8)])) for token in (1, 2)]
            spared = engine.submit(task_of([make_row([3] * 8)]))
            break_once(monkeypatch, call=0)
            gate.open()

            for future in lost:
                with pytest.raises(EngineFault):
                    future.result(timeout=60)
            assert plug.result(timeout=60).stats.end == spared.result(timeout=60).stats.end == "ok"
            at_rest(engine)

    @pytest.mark.parametrize("operation", ["rms_norm", "rotate", "store_kv", "plan", "attend", "label_logits"])
    def test_in_any_operation_are_survived(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, operation: str
    ) -> None:
        def broken(*_: object) -> None:
            raise ArithmeticError(operation)

        row = make_row([1, 2, 3])
        with running(tiny_engine(checkpoint)) as engine:
            expected = logits(score(engine, [row], namespace="b"))
            with monkeypatch.context() as patch:
                patch.setattr(CpuKernels, operation, broken)
                with pytest.raises(EngineFault, match=operation):
                    score(engine, [row])

            assert logits(score(engine, [row])) == expected
            at_rest(engine)

    def test_do_not_keep_the_tensors_of_their_step(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A step that had no memory left would leave none to the next, for as long as a caller keeps its error."""
        seen: list[weakref.ref[Tensor]] = []

        def store_kv(self: CpuKernels, key: Tensor, *_: object) -> None:
            seen.append(weakref.ref(key))
            raise ArithmeticError("no memory left")

        with running(tiny_engine(checkpoint)) as engine:
            monkeypatch.setattr(CpuKernels, "store_kv", store_kv)
            error = engine.submit(task_of([make_row([1, 2, 3])])).exception(timeout=60)
            at_rest(engine)

        assert isinstance(error, EngineFault)
        assert [tensor() for tensor in seen] == [None]


class TestNumbersThatAreNotFinite:
    @pytest.fixture
    def broken_token(self) -> Checkpoint:
        """A model that gives no number for anything after token 7."""
        whole = tiny_checkpoint(tiny_config(tie_word_embeddings=False))
        head = whole.weights.head.clone()
        whole.weights.embedding[7] = torch.nan
        return Checkpoint(
            config=whole.config,
            weights=type(whole.weights)(
                embedding=whole.weights.embedding,
                layers=whole.weights.layers,
                final_norm=whole.weights.final_norm,
                head=head,
            ),
            revision=whole.revision,
            name=whole.name,
        )

    def test_b010_leave_only_the_rows_they_belong_to_unscored(self, broken_token: Checkpoint) -> None:
        rows = [
            make_row([1, 2, 3, 4, 7, 8]),
            make_row([1, 2, 3, 5]),
            RowSpec((1, 2, 7, 4), target=2).row(),
            RowSpec((1, 2, 4, 4), target=2).row(),
            make_row([7]),
            make_row([2, 2]),
        ]
        with running(tiny_engine(broken_token)) as engine:
            result = score(engine, rows)
            alone = [score(engine, [row], namespace=str(n)).rows[0] for n, row in enumerate(rows)]

        unscored = [row.outcome == Unscored(reason="non_finite") for row in result.rows]
        assert unscored == [row.outcome == Unscored(reason="non_finite") for row in alone]
        assert unscored == [True, False, True, False, True, False]
        assert result.stats.end == "ok"

    @pytest.mark.parametrize("step_tokens", [16, 1000])
    def test_are_not_found_again_by_a_row_that_shares_the_beginning(
        self, broken_token: Checkpoint, step_tokens: int
    ) -> None:
        prefix = [1, 2, 3, 4] * 5
        with running(tiny_engine(broken_token, step_tokens=step_tokens)) as engine:
            expected = logits(score(engine, [make_row([*prefix, 5])], namespace="b"))
            bad = score(engine, [make_row([*prefix, 7, 8, 9])])
            assert bad.rows[0].outcome == Unscored(reason="non_finite")

            for _ in range(2):
                assert logits(score(engine, [make_row([*prefix, 5])])) == pytest.approx(expected, abs=1e-4)
            at_rest(engine)

    def test_of_one_row_cost_the_others_nothing_that_they_share_with_it(self, broken_token: Checkpoint) -> None:
        prefix = [1, 2, 3, 4] * 5
        with running(tiny_engine(broken_token)) as engine:
            score(engine, [make_row([*prefix, 7, 8]), make_row([*prefix, 5, 6])])

            usage = score(engine, [make_row([*prefix, 6])]).rows[0].usage
        assert usage.cached_tokens == len(prefix)

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_do_not_reach_a_row_of_the_same_task_that_leaves_the_path_before(
        self, broken_token: Checkpoint, order: tuple[int, ...]
    ) -> None:
        rows = [make_row([*[1] * 9, 7, *[2] * 5, token]) for token in (1, 2)] + [make_row([*[1] * 9, *[8] * 8])]
        with running(tiny_engine(broken_token, step_tokens=16)) as engine:
            result = score(engine, [rows[index] for index in order])

        scored = {index for index, row in zip(order, result.rows, strict=True) if isinstance(row.outcome, LabelOutcome)}
        assert scored == {2}


class TestClosing:
    def test_finishes_what_is_queued_within_its_time(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        engine = tiny_engine(checkpoint, gate, step_tokens=16)
        futures = [engine.submit(task_of([make_row([token] * 20)])) for token in range(5)]
        gate.wait()
        closer = threading.Thread(target=lambda: engine.close(drain_s=1000))
        closer.start()
        wait_until(lambda: not engine.health().accepting)
        assert engine.health().reason == "draining"
        assert engine.health().alive

        with pytest.raises(EngineClosed, match="draining"):
            engine.submit(task_of([make_row([1])]))
        gate.open()
        closer.join(timeout=60)

        assert [future.result(timeout=0).stats.end for future in futures] == ["ok"] * 5
        assert not engine.health().alive
        assert engine.health().reason == "stopped"
        with pytest.raises(EngineClosed):
            engine.submit(task_of([make_row([1])]))

    def test_ends_what_is_left_when_its_time_is_up(self, checkpoint: Checkpoint) -> None:
        gate = Gate()
        engine = tiny_engine(checkpoint, gate, step_tokens=16)
        futures = [engine.submit(task_of([make_row([token] * 12)])) for token in range(3)]
        gate.wait()
        closer = threading.Thread(target=lambda: engine.close(drain_s=0))
        closer.start()
        wait_until(lambda: not engine.health().accepting)
        gate.open()
        closer.join(timeout=60)

        assert futures[0].result(timeout=0).stats.end == "ok"
        for future in futures[1:]:
            with pytest.raises(EngineClosed, match="stopped before this task was finished"):
                future.result(timeout=0)
        assert sorted(task.end for task in gate.tasks) == ["closed", "closed", "ok"]
        at_rest(engine)

    def test_twice_is_harmless(self, checkpoint: Checkpoint) -> None:
        engine = tiny_engine(checkpoint)
        engine.close(drain_s=0)
        engine.close(drain_s=0)

        assert not engine.health().alive

    def test_an_engine_that_never_started_ends_what_was_submitted(self, checkpoint: Checkpoint) -> None:
        log = Log()
        engine = unstarted(checkpoint, log)
        assert not engine.health().alive
        future = engine.submit(task_of([make_row([1])]))

        engine.close(drain_s=1000)

        with pytest.raises(EngineClosed):
            future.result(timeout=0)
        assert [task.end for task in log.tasks] == ["closed"]


class TestDeath:
    """Whatever kills the engine's thread, nobody waits for it and nobody is told it is well."""

    def assert_dead(self, engine: EngineThread, waiting: list[Future[ScoreResult]]) -> None:
        for future in waiting:
            with pytest.raises(EngineClosed):
                future.result(timeout=60)
        wait_until(lambda: not engine._thread.is_alive())
        health = engine.health()
        assert (health.alive, health.accepting) == (False, False)
        assert "broke" in health.reason
        with pytest.raises(EngineClosed, match="stopped"):
            engine.submit(task_of([make_row([1])]))
        engine.close(drain_s=1000)

    @pytest.mark.parametrize("method", ["on_step", "on_task"])
    def test_by_an_observer_that_raises(self, checkpoint: Checkpoint, method: str) -> None:
        class Broken(Gate):
            def on_step(self, stats: StepStats) -> None:
                super().on_step(stats)
                if method == "on_step":
                    raise RuntimeError("the observer broke")

            def on_task(self, stats: TaskStats) -> None:
                if method == "on_task":
                    raise RuntimeError("the observer broke")

        gate = Broken()
        engine = tiny_engine(checkpoint, gate, step_tokens=16)
        first = engine.submit(task_of([make_row([1] * 16)]))
        gate.wait()
        waiting = [engine.submit(task_of([make_row([2] * 16)])) for _ in range(4)]
        gate.open()

        self.assert_dead(engine, waiting if method == "on_task" else [first, *waiting])

    def test_by_a_task_that_breaks_the_scheduler(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = Scheduler.add

        def add(self: Scheduler, task: TaskState) -> None:
            if task.task.task_id == "bad":
                raise RuntimeError("the scheduler broke")
            whole(self, task)

        monkeypatch.setattr(Scheduler, "add", add)
        gate = Gate()
        engine = tiny_engine(checkpoint, gate)
        engine.submit(task_of([make_row([1])]))
        gate.wait()
        waiting = [engine.submit(task_of([make_row([1])], task_id=name)) for name in ("good", "bad", "late")]
        gate.open()

        self.assert_dead(engine, waiting)

    def test_by_a_result_that_cannot_be_made(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        def result(self: TaskState, end: TaskEnd) -> ScoreResult:
            raise RuntimeError("the result broke")

        monkeypatch.setattr(TaskState, "result", result)
        engine = tiny_engine(checkpoint)

        self.assert_dead(engine, [engine.submit(task_of([make_row([1])]))])

    @pytest.mark.parametrize("method", ["abandon", "commit"])
    def test_by_books_that_cannot_be_closed_after_a_step(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        """Half a commit is not undone: nothing may run on what is left."""

        def broken(*_: object) -> None:
            raise RuntimeError("the cache broke")

        if method == "abandon":
            break_once(monkeypatch, call=0)
        monkeypatch.setattr(PrefixCache, method, broken)
        engine = tiny_engine(checkpoint)

        self.assert_dead(engine, [engine.submit(task_of([make_row([1])]))])

    def test_b036_by_a_device_that_is_lost(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What ran there has failed, what waits is not tried: every later call would fail, too."""
        illegal = torch.AcceleratorError("CUDA error: broke an address")
        illegal.error_code = 700  # type: ignore[attr-defined]
        gate = Gate()
        engine = tiny_engine(checkpoint, gate, step_tokens=16)
        first = engine.submit(task_of([make_row([9])]))
        gate.wait()
        lost = engine.submit(task_of([make_row([1] * 16)]))
        waiting = [engine.submit(task_of([make_row([2] * 16)])) for _ in range(3)]
        break_once(monkeypatch, call=0, error=illegal)
        gate.open()

        assert first.result(timeout=60).stats.end == "ok"
        with pytest.raises(EngineFault, match="broke an address"):
            lost.result(timeout=60)
        for future in waiting:
            with pytest.raises(EngineClosed, match=r"the device is lost: .* broke an address"):
                future.result(timeout=60)
        self.assert_dead(engine, waiting)
        assert Counter(task.end for task in gate.tasks) == {"ok": 1, "fault": 1, "closed": 3}
        assert len(gate.steps) == 1
        assert "the device is lost: CUDA error: broke an address" in caplog.text

    def test_not_by_a_step_that_had_no_memory_left(
        self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate()
        with running(tiny_engine(checkpoint, gate, step_tokens=16)) as engine:
            engine.submit(task_of([make_row([9])]))
            gate.wait()
            lost, spared = (engine.submit(task_of([make_row([token] * 16)])) for token in (1, 2))
            break_once(monkeypatch, call=0, error=torch.OutOfMemoryError("no room"))
            gate.open()

            with pytest.raises(EngineFault, match="no room"):
                lost.result(timeout=60)
            assert spared.result(timeout=60).stats.end == "ok"
            at_rest(engine)

    def test_while_a_task_is_being_removed(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        def remove(self: Scheduler, task: TaskState) -> None:
            self._tasks.remove(task)
            raise RuntimeError("the scheduler broke")

        monkeypatch.setattr(Scheduler, "remove", remove)
        gate = Gate()
        engine = tiny_engine(checkpoint, gate)
        waiting = [engine.submit(task_of([make_row([1])]))]
        gate.wait()
        waiting.append(engine.submit(task_of([make_row([2])])))
        gate.open()

        self.assert_dead(engine, waiting)


class TestUsage:
    @pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
    def test_b015_a_prompt_sent_twice_computes_its_last_token(self, checkpoint: Checkpoint, length: int) -> None:
        row = make_row([(n * n) % 50 for n in range(length)])
        with running(tiny_engine(checkpoint, block_size=16)) as engine:
            first, second = score(engine, [row]), score(engine, [row])

        assert first.rows[0].usage.cached_tokens == 0
        assert second.rows[0].usage.cached_tokens == length - 1
        assert second.rows[0].usage.computed_tokens == 1
        assert logits(second) == pytest.approx(logits(first), abs=1e-4)

    @pytest.mark.parametrize("block_size", [1, 7, 16, 48])
    @pytest.mark.parametrize("length", [1, 6, 7, 8, 15, 16, 50])
    def test_b019_prompts_shorter_and_longer_than_a_block_of_any_size_score_alike(
        self, checkpoint: Checkpoint, block_size: int, length: int
    ) -> None:
        """The smallest prefix that can be found again is one token."""
        row = make_row([(n * n) % 50 for n in range(length)])
        with running(tiny_engine(checkpoint, block_size=block_size, num_blocks=64)) as engine:
            first, second = score(engine, [row]), score(engine, [row])

        assert (first.rows[0].usage.cached_tokens, second.rows[0].usage.cached_tokens) == (0, length - 1)
        for result in (first, second):
            assert numbers(result.rows[0].outcome) == pytest.approx(plain_numbers(checkpoint, row), abs=1e-4)

    def test_b016_prompts_that_differ_are_no_hits_in_a_pool_under_pressure(self, checkpoint: Checkpoint) -> None:
        log = Log()
        with running(tiny_engine(checkpoint, log, num_blocks=20, block_size=4, step_tokens=16)) as engine:
            futures = [
                engine.submit(task_of([make_row([number // 90, number % 90, *[5] * 62])], task_id=str(number)))
                for number in range(150)
            ]
            usages = [future.result(timeout=60).rows[0].usage for future in futures]
            at_rest(engine)

        # prompts that agree in their first token may share it; none of the rest was ever there before
        assert sum(usage.cached_tokens for usage in usages) <= 150
        assert max(usage.cached_tokens for usage in usages) <= 1
        assert sum(step.evicted_tokens for step in log.steps) > 0

    def test_b016_unique_prompts_in_chunks_hit_nothing(self, checkpoint: Checkpoint) -> None:
        with running(tiny_engine(checkpoint, num_blocks=20, block_size=4, step_tokens=16)) as engine:
            for number in range(90):
                usage = score(engine, [make_row([number, *[5] * 63])]).rows[0].usage
                assert (usage.cached_tokens, usage.shared_tokens, usage.computed_tokens) == (0, 0, 64)

    def test_steps_and_tasks_tell_the_same_story(self, checkpoint: Checkpoint) -> None:
        rng = random.Random(3)
        log = Log()
        with running(tiny_engine(checkpoint, log, step_tokens=32)) as engine:
            futures = []
            for number in range(20):
                rows = [make_row([5] * rng.randrange(1, 30) + [rng.randrange(9)], keep=1) for _ in range(5)]
                futures.append(engine.submit(task_of(rows, task_id=str(number))))
            results = [future.result(timeout=60) for future in futures]
            at_rest(engine)

        assert [result.stats.task_id for result in results] == [str(number) for number in range(20)]
        assert sum(step.computed_tokens for step in log.steps) == sum(task.computed_tokens for task in log.tasks)
        assert sum(step.kept_tokens for step in log.steps) == sum(task.kept_tokens for task in log.tasks)
        assert sum(step.num_tasks for step in log.steps) == sum(task.num_steps for task in log.tasks)
        for result in results:
            stats = result.stats
            usages = [row.usage for row in result.rows]
            assert stats.num_rows == len(usages)
            assert stats.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
            assert stats.cached_tokens == sum(usage.cached_tokens for usage in usages)
            assert stats.shared_tokens == sum(usage.shared_tokens for usage in usages)
            assert stats.computed_tokens == sum(usage.computed_tokens for usage in usages)
            assert stats.prompt_tokens == stats.cached_tokens + stats.shared_tokens + stats.computed_tokens
            assert stats.first_score_s is not None
            assert 0 <= stats.queue_s <= stats.first_score_s <= stats.total_s
            assert 0 < stats.prefill_s <= stats.total_s
            assert 0 < stats.readout_s <= stats.total_s

    def test_results_come_in_the_order_of_the_rows(self, checkpoint: Checkpoint) -> None:
        rows = [make_row([token, token]) for token in (9, 3, 7, 1)]
        with running(tiny_engine(checkpoint)) as engine:
            together = logits(score(engine, rows))
            alone = [value for row in rows for value in logits(score(engine, [row], namespace="b"))]

        assert together == pytest.approx(alone, abs=1e-4)


def test_info_says_what_was_built(checkpoint: Checkpoint) -> None:
    engine = unstarted(
        checkpoint, num_blocks=10, block_size=8, step_tokens=32, max_queued_tokens=99, kernels="reference"
    )

    info = engine.info
    assert (info.model, info.revision, info.dtype) == ("tiny", "tiny0", "float32")
    assert (info.device, info.kernels) == ("cpu", "reference")
    assert (info.vocab_size, info.num_layers, info.kv_bytes_per_token) == (97, 2, 2 * 2 * 1 * 16 * 4)
    assert (info.num_blocks, info.block_size, info.max_row_tokens) == (10, 8, 80)
    assert (info.step_tokens, info.max_queued_tokens) == (32, 99)


@pytest.mark.parametrize("seed", range(12))
def test_every_task_ends_exactly_once(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Three callers submit, cancel and set deadlines while layers fail and the engine is closed."""
    caplog.set_level(logging.CRITICAL)
    rng, faults = random.Random(seed), random.Random(seed)
    whole = CpuKernels.store_kv

    def store_kv(self: CpuKernels, *inputs: Any) -> None:
        if faults.random() < 0.02:
            raise ArithmeticError("bad luck")
        whole(self, *inputs)

    monkeypatch.setattr(CpuKernels, "store_kv", store_kv)
    log = Log()
    num_blocks = rng.choice([8, 40])
    engine = tiny_engine(checkpoint, log, num_blocks=num_blocks, step_tokens=16, max_queued_tokens=600)
    accepted: dict[str, Future[ScoreResult]] = {}

    def call(caller: int) -> None:
        dice = random.Random(100 * seed + caller)
        for number in range(25):
            name = f"{caller}.{number}"
            try:
                accepted[name] = engine.submit(_random_task(dice, name))
            except (OutOfCapacity, EngineClosed):
                continue
            if dice.random() < 0.3:
                dice.choice(list(accepted.values())).cancel()

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    if seed % 3 == 0:
        engine.close(drain_s=0)
    for caller in callers:
        caller.join()
    engine.close(drain_s=rng.choice([0, 60]))

    assert Counter(stats.task_id for stats in log.tasks) == Counter(accepted.keys())
    ends = {stats.task_id: stats.end for stats in log.tasks}
    assert {name: _end_of(future) for name, future in accepted.items()} == ends
    at_rest(engine)
    assert engine._waiting_tokens == 0
    for stats in log.tasks:
        assert stats.prompt_tokens == stats.cached_tokens + stats.shared_tokens + stats.computed_tokens
    ran = sum(stats.computed_tokens + stats.recomputed_tokens for stats in log.tasks)
    assert ran == sum(step.computed_tokens for step in log.steps)


def _random_task(dice: random.Random, name: str) -> ScoreTask:
    rows = []
    for _ in range(dice.randrange(1, 5)):
        tokens = tuple(dice.choice([1, 2]) for _ in range(dice.randrange(1, 32)))
        rows.append(RowSpec(tokens, dice.randrange(len(tokens) + 1), dice.randrange(len(tokens) + 1)).row())
    wait_s = dice.choice([None, None, -1.0, 0.01, 1000.0])
    deadline_s = None if wait_s is None else time.monotonic() + wait_s
    return task_of(rows, task_id=name, namespace=dice.choice("ab"), deadline_s=deadline_s)


def _end_of(future: Future[Any]) -> TaskEnd:
    assert future.done()
    if future.cancelled():
        return "cancelled"
    match future.exception(timeout=0):
        case None:
            result: ScoreResult = future.result(timeout=0)
            return result.stats.end
        case DeadlineExceeded():
            return "deadline"
        case EngineFault():
            return "fault"
        case EngineClosed():
            return "closed"
        case error:
            raise AssertionError(f"ended with {error!r}")
