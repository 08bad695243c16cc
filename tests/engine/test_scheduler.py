from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.records import RowUsage
from engine.sequence import TaskState
from tests.helpers.paper_engine import PaperEngine, cached_prefixes, check_cache, make_task, usages
from tests.helpers.tries import RowSpec, batches, make_row, unique_work

namespaces = st.sampled_from(["a", "b"])


def computed(task: TaskState) -> int:
    return sum(usage.computed_tokens for usage in usages(task))


def assert_usage_adds_up(task: TaskState) -> None:
    for row, usage in zip(task.rows, usages(task), strict=True):
        assert usage.prompt_tokens == usage.cached_tokens + usage.shared_tokens + usage.computed_tokens
        assert row.outcome is None or usage.prompt_tokens == len(row.row.tokens)


class TestWork:
    @settings(deadline=None, max_examples=300)
    @given(
        tasks=batches(),
        namespace=st.lists(namespaces, min_size=3, max_size=3),
        step_tokens=st.sampled_from([16, 17, 23, 1000]),
        block_size=st.sampled_from([1, 3, 4, 16]),
    )
    def test_every_position_is_computed_once_whatever_the_budget(
        self, tasks: list[list[RowSpec]], namespace: list[str], step_tokens: int, block_size: int
    ) -> None:
        engine = PaperEngine(num_blocks=2000 // block_size, block_size=block_size, step_tokens=step_tokens)
        for specs, name in zip(tasks, namespace, strict=False):
            cached = cached_prefixes(engine.cache)

            task = engine.run([spec.row() for spec in specs], namespace=name)

            assert computed(task) == unique_work(specs, name, cached)
            assert_usage_adds_up(task)
            kept = set(check_cache(engine.cache))
            assert kept >= {(name, spec.tokens[:stop]) for spec in specs for stop in range(1, spec.keep + 1)}
            assert task.kept_tokens == len(kept) - len(cached)
            assert kept - set(cached) <= {(name, s.tokens[:stop]) for s in specs for stop in range(s.keep + 1)}

        assert sum(step.evicted_tokens for step in engine.steps) == 0

    @settings(deadline=None, max_examples=100)
    @given(tasks=batches(num_batches=4), step_tokens=st.sampled_from([16, 40, 1000]))
    def test_tasks_that_wait_together_compute_together_what_they_share(
        self, tasks: list[list[RowSpec]], step_tokens: int
    ) -> None:
        """What the tasks count, the steps count and the decoder saw are one number."""
        engine = PaperEngine(num_blocks=2000, step_tokens=step_tokens)
        states = [engine.add([spec.row() for spec in specs]) for specs in tasks]
        while engine.scheduler.num_tasks:
            engine.step()

        total = sum(computed(state) for state in states)
        assert total == len(engine.decoder.computed) == sum(step.computed_tokens for step in engine.steps)
        assert sum(state.kept_tokens for state in states) == sum(step.kept_tokens for step in engine.steps)
        if step_tokens == 1000 and total <= 1000:
            assert total == unique_work([spec for specs in tasks for spec in specs], "a", ())

    @settings(deadline=None, max_examples=200)
    @given(
        tasks=batches(num_batches=4),
        pauses=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        step_tokens=st.sampled_from([16, 19, 40, 1000]),
    )
    def test_a_token_is_cached_if_it_was_there_when_its_task_began_and_shared_if_it_came_since(
        self, tasks: list[list[RowSpec]], pauses: list[int], step_tokens: int
    ) -> None:
        """Tasks arrive while others run. The judge knows what was in the cache before the first step of each."""
        engine = PaperEngine(num_blocks=2000, step_tokens=step_tokens)
        specs_of: dict[int, list[RowSpec]] = {}
        waiting: list[TaskState] = []
        ended: list[TaskState] = []

        def step() -> None:
            found = cached_prefixes(engine.cache)
            ended.extend(engine.step())
            for task in [task for task in waiting if task.num_steps]:
                waiting.remove(task)
                for spec, state in zip(specs_of[task.serial], task.rows, strict=True):
                    known = 0
                    while known < len(spec.tokens) and ("a", spec.tokens[: known + 1]) in found:
                        known += 1
                    expected[task.serial, id(state)] = min(known, len(spec.tokens) - (spec.target or 1))

        expected: dict[tuple[int, int], int] = {}
        for specs, pause in zip(tasks, pauses, strict=False):
            task = engine.add([spec.row() for spec in specs])
            specs_of[task.serial] = specs
            waiting.append(task)
            for _ in range(pause):
                step()
        while engine.scheduler.num_tasks:
            step()

        assert len(ended) == len(specs_of)
        for task in ended:
            assert_usage_adds_up(task)
            for state in task.rows:
                assert state.usage().cached_tokens == expected[task.serial, id(state)]
        assert sum(computed(task) for task in ended) == sum(step.computed_tokens for step in engine.steps)

    def test_what_a_task_beside_it_computes_is_shared_and_not_cached(self) -> None:
        """The second task is in the step that computes all twelve, but only with its first row."""
        engine = PaperEngine(step_tokens=16)
        first = engine.add([make_row([5] * 12)])
        second = engine.add([make_row([5] * 2), make_row([*[5] * 12, *[7] * 12])])

        assert engine.step() == [first]
        assert second.num_steps == 1
        assert engine.step() == [second]
        assert usages(second)[1] == RowUsage(prompt_tokens=24, shared_tokens=12, computed_tokens=12)

    def test_rows_behind_a_label_row_still_read_the_path_while_it_is_computed(self) -> None:
        """The step ends before the second row. The third reads nothing of the path; the fourth does."""
        path = (5,) * 12
        specs = [RowSpec((*path, 1, 1)), *(RowSpec((*path, *[token] * 9)) for token in (2, 3))]
        specs.append(RowSpec((*path, *[4] * 6), target=12))
        engine = PaperEngine(step_tokens=16)

        task = engine.run([spec.row() for spec in specs])

        assert len(engine.steps) > 1
        assert computed(task) == unique_work(specs, "a", ()) == 12 + 2 + 9 + 9 + 6

    def test_a_row_that_follows_another_half_way_into_a_cached_node_reads_no_strange_keys(self) -> None:
        engine = PaperEngine()
        engine.run([make_row([1, 2, 3, 9, 9]), make_row([1, 2, 3, 9, 9, 7, 7])])

        task = engine.run([make_row([1, 2, 3, 4, 5, 6]), make_row([1, 2, 3, 4, 5, 7, 7])])

        assert [usage.cached_tokens for usage in usages(task)] == [3, 3]

    @pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
    def test_b015_a_full_hit_computes_its_last_position(self, length: int) -> None:
        engine = PaperEngine(block_size=16, step_tokens=64)
        row = make_row([1, 2] * 30, keep=length)
        row = make_row(row.tokens[:length].tolist())
        engine.run([row])

        (usage,) = usages(engine.run([row]))

        assert (usage.cached_tokens, usage.computed_tokens) == (length - 1, 1)

    def test_equal_rows_are_computed_once(self) -> None:
        engine = PaperEngine()

        task = engine.run([make_row([1, 2, 3]), make_row([1, 2, 3]), make_row([1, 2, 3], target=2)])

        assert [usage.computed_tokens for usage in usages(task)] == [3, 0, 0]
        assert [usage.shared_tokens for usage in usages(task)] == [0, 3, 3]

    def test_equal_rows_of_two_namespaces_in_one_step_are_computed_twice(self) -> None:
        engine = PaperEngine()
        first = engine.add([make_row([1, 2, 3])], namespace="a")
        second = engine.add([make_row([1, 2, 3])], namespace="b")

        assert engine.step() == [first, second]
        assert (computed(first), computed(second)) == (3, 3)

    def test_b016_own_chunks_are_no_hits(self) -> None:
        engine = PaperEngine(num_blocks=8, block_size=4, step_tokens=16)
        rng = random.Random(0)

        for _ in range(40):
            (usage,) = usages(engine.run([make_row([rng.randrange(16) for _ in range(30)])], namespace=str(rng)))
            assert (usage.cached_tokens, usage.shared_tokens, usage.computed_tokens) == (0, 0, 30)
            engine.cache.evict_all()

    def test_a_suffix_that_nobody_wants_gets_no_block(self) -> None:
        engine = PaperEngine(num_blocks=2, block_size=4, step_tokens=1000)

        engine.run([make_row([1, 2, 3, token, token], keep=3) for token in range(16)])

        assert engine.cache.cached_tokens == 3
        assert engine.cache.num_free == 1
        assert len(engine.steps) == 1


class TestBudget:
    @settings(deadline=None, max_examples=300)
    @given(
        tasks=batches(num_batches=4, max_rows=8),
        step_tokens=st.sampled_from([16, 17, 30]),
        together=st.booleans(),
    )
    def test_no_step_exceeds_it(self, tasks: list[list[RowSpec]], step_tokens: int, *, together: bool) -> None:
        engine = PaperEngine(num_blocks=2000, step_tokens=step_tokens)
        for specs in tasks:
            engine.add([spec.row() for spec in specs])
            while engine.scheduler.num_tasks and not together:
                engine.step()
        while engine.scheduler.num_tasks:
            engine.step()

        assert max(step.computed_tokens for step in engine.steps) <= step_tokens

    def test_a_cached_path_that_a_later_row_reads_is_read_before_the_step_goes_beyond_it(self) -> None:
        """Forty tokens are cached. The first row goes on from there; the second reads all of them, and what follows."""
        path = [token % 7 for token in range(40)]
        engine = PaperEngine(step_tokens=16)
        engine.run([make_row(path)])
        before = len(engine.steps)
        tail = [1] * 20

        task = engine.run([make_row([*path, *tail, 1]), make_row([*path, *tail, 2, 2], target=60)])

        assert [step.computed_tokens for step in engine.steps[before:]] == [16, 16, 16, 13]
        assert [usage.computed_tokens for usage in usages(task)] == [21, 40]

    def test_a_cached_path_that_a_later_row_reads_waits_if_nothing_is_computed_beyond_it(self) -> None:
        path = [token % 7 for token in range(40)]
        engine = PaperEngine(step_tokens=16)
        engine.run([make_row(path)])
        before = len(engine.steps)

        engine.run([make_row([*path, 1, 1]), make_row([*path, 2, 2], target=42)])

        assert [step.computed_tokens for step in engine.steps[before:]] == [2, 16, 16, 10]

    def test_a_row_longer_than_it_runs_in_chunks(self) -> None:
        engine = PaperEngine(step_tokens=16)

        engine.run([make_row(list(range(10)) * 4)])

        assert [step.computed_tokens for step in engine.steps] == [16, 16, 8]

    def test_tasks_share_a_step_while_it_lasts(self) -> None:
        engine = PaperEngine(step_tokens=16)
        first, second, third = (engine.add([make_row([token] * 6, keep=0)]) for token in (1, 2, 3))

        assert engine.step() == [first, second]
        assert engine.step() == [third]

    def test_a_later_task_does_not_overtake_one_that_does_not_fit(self) -> None:
        engine = PaperEngine(step_tokens=16)
        first = engine.add([make_row([1] * 10)])
        second = engine.add([make_row([2] * 10)])
        third = engine.add([make_row([3] * 2)])

        assert engine.step() == [first]
        assert engine.step() == [second, third]

    def test_a_cached_prefix_costs_none_of_it(self) -> None:
        engine = PaperEngine(step_tokens=16)
        engine.run([make_row([1] * 40)])
        before = len(engine.steps)

        engine.run([make_row([*[1] * 40, token, token], keep=0) for token in range(8)])

        assert len(engine.steps) == before + 1


class TestSpareTokens:
    """What is kept beyond ``keep_tokens``, because a step ended there, leaves the cache with its task."""

    def test_a_chunk_beyond_what_is_wanted_is_dropped_at_the_end(self) -> None:
        engine = PaperEngine(step_tokens=16)
        task = engine.add([make_row([1] * 50, keep=10)])
        engine.step()
        assert engine.cache.cached_tokens == 16

        while engine.scheduler.num_tasks:
            engine.step()

        assert engine.cache.cached_tokens == task.kept_tokens == 10
        assert engine.cache.num_free == engine.cache.num_blocks - 3
        assert sum(step.evicted_tokens for step in engine.steps) == 0
        check_cache(engine.cache)

    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_a_task_that_is_given_up_leaves_what_it_wanted(self, steps: int) -> None:
        engine = PaperEngine(step_tokens=16)
        task = engine.add([make_row([1] * 60, keep=20)])
        for _ in range(steps):
            engine.step()

        engine.scheduler.remove(task)

        assert engine.cache.cached_tokens == min(20, 16 * steps)
        check_cache(engine.cache)

    def test_what_another_task_wants_stays(self) -> None:
        engine = PaperEngine(step_tokens=16)
        first = engine.add([make_row([1] * 40, keep=5)])
        engine.step()
        other = engine.add([make_row([1] * 12, keep=12)])
        while engine.scheduler.num_tasks:
            engine.step()

        assert engine.cache.cached_tokens == 12
        assert (first.kept_tokens, other.kept_tokens) == (5, 7)
        check_cache(engine.cache)

    def test_what_another_task_stands_on_goes_when_that_has_ended(self) -> None:
        """The first is given up while the second holds its path; neither wants anything kept."""
        engine = PaperEngine(step_tokens=16)
        first = engine.add([make_row([1] * 40, keep=0)])
        engine.step()
        engine.scheduler.remove(first)
        assert engine.cache.cached_tokens == 0

        first = engine.add([make_row([1] * 40, keep=0)])
        engine.step()
        held = engine.cache.match("a", make_row([1] * 16).tokens).last
        engine.cache.hold(held)
        engine.scheduler.remove(first)
        assert engine.cache.cached_tokens == 16
        engine.cache.let_go(held)
        engine.run([make_row([2])])

        assert engine.cache.cached_tokens == 1
        check_cache(engine.cache)

    def test_a_node_that_was_split_goes_as_a_whole(self) -> None:
        engine = PaperEngine(step_tokens=16)
        first = engine.add([make_row([1] * 40, keep=0)])
        engine.step()
        engine.scheduler.add(other := make_task([make_row([*[1] * 7, 2], keep=0)], serial=99))
        match = engine.cache.match("a", make_row([1] * 7).tokens)
        engine.cache._end_at(match.last, 7)

        engine.scheduler.remove(other)
        engine.scheduler.remove(first)

        assert engine.cache.cached_tokens == 0
        check_cache(engine.cache)


class TestRoom:
    @pytest.mark.parametrize("block_size", [1, 3, 4, 16])
    @pytest.mark.parametrize("num_blocks", [1, 2, 7])
    def test_a_row_as_long_as_the_pool_runs(self, block_size: int, num_blocks: int) -> None:
        engine = PaperEngine(num_blocks=num_blocks, block_size=block_size, step_tokens=16)
        length = num_blocks * block_size
        engine.run([make_row([2] * (length // 2 + 1))])
        engine.run([make_row([1] * (length // 3 + 1))])

        task = engine.run([make_row([1] * length), make_row([*[1] * (length - 1), 3], target=length)])

        assert task.finished
        check_cache(engine.cache)

    def test_a_step_that_does_not_fit_keeps_less_and_still_runs(self) -> None:
        engine = PaperEngine(num_blocks=2, block_size=4, step_tokens=1000)

        task = engine.run([make_row([token] * 6) for token in range(5)])

        assert task.finished
        assert computed(task) == 30

    def test_a_path_cut_into_many_blocks_makes_way_for_the_row_that_is_on_it(self) -> None:
        """Five nodes of one token each waste so much of their blocks that the row they lead to does not fit."""
        engine = PaperEngine(num_blocks=6, block_size=4, step_tokens=16)
        path: list[int] = []
        for token in range(1, 6):
            engine.run([make_row([*path, 0])])
            path.append(token)
            engine.run([make_row(path)])

        task = engine.run([make_row([*path, *[7] * 19])])

        assert task.finished
        check_cache(engine.cache)

    def test_the_path_of_the_next_row_is_not_evicted_by_its_own_task(self) -> None:
        engine = PaperEngine(num_blocks=5, block_size=4, step_tokens=16)
        prefix = [1] * 10

        task = engine.run([make_row([*prefix, token, token]) for token in range(2, 14)])

        assert computed(task) == 10 + 12 * 2


class TestEnds:
    def test_removing_a_task_half_way_lets_go_of_its_path(self) -> None:
        engine = PaperEngine(step_tokens=16)
        task = engine.add([make_row([1] * 40)])
        engine.step()
        assert engine.cache.num_pinned() > 0

        engine.scheduler.remove(task)

        assert engine.cache.num_pinned() == 0
        assert engine.scheduler.num_tasks == 0
        check_cache(engine.cache)

    def test_b023_a_failed_step_publishes_nothing_and_takes_no_room(self) -> None:
        engine = PaperEngine()
        engine.run([make_row([1, 2, 3])])
        free = engine.cache.num_free
        failing = engine.add([make_row([1, 2, 3, 4, 5]), make_row([6] * 10)])

        engine.decoder.fail = True
        assert engine.step() == [failing]
        engine.decoder.fail = False

        assert engine.cache.num_free == free
        assert engine.cache.num_pinned() == 0
        assert set(cached_prefixes(engine.cache)) == {("a", (1,)), ("a", (1, 2)), ("a", (1, 2, 3))}
        (usage,) = usages(engine.run([make_row([6] * 10)]))
        assert usage.cached_tokens == 0

    def test_without_tasks_there_is_no_step(self) -> None:
        assert PaperEngine().scheduler.next_step() is None

    def test_namespaces_do_not_outlive_their_tokens(self) -> None:
        engine = PaperEngine(num_blocks=2, block_size=4)

        for number in range(20):
            engine.run([make_row([1, 2])], namespace=str(number))

        assert set(engine.cache._tree._roots) == {"18", "19"}


class TestQueuedTokens:
    def test_count_what_is_neither_cached_nor_shared(self) -> None:
        engine = PaperEngine(step_tokens=16)
        engine.run([make_row([1] * 8)])

        engine.add([make_row([*[1] * 8, 2, 2]), make_row([*[1] * 8, 2, 3]), make_row([4] * 20)])
        assert engine.scheduler.queued_tokens == 2 + 1 + 20
        engine.add([make_row([1] * 8)])
        assert engine.scheduler.queued_tokens == 2 + 1 + 20 + 1

        left = [engine.scheduler.queued_tokens]
        while engine.scheduler.num_tasks:
            engine.step()
            left.append(engine.scheduler.queued_tokens)
        assert left == sorted(left, reverse=True)
        assert left[-1] == 0

    def test_arrival_counts_as_a_use_of_what_it_finds(self) -> None:
        engine = PaperEngine(num_blocks=3, block_size=4, step_tokens=16)
        for token in (1, 2, 3):
            engine.run([make_row([token] * 4)])

        engine.add([make_row([4] * 4)])
        engine.add([make_row([1] * 4)])
        while engine.scheduler.num_tasks:
            engine.step()

        cached = {tokens[0] for _, tokens in cached_prefixes(engine.cache)}
        assert cached == {1, 3, 4}


class SchedulerMachine(RuleBasedStateMachine):
    """Tasks come, run, are given up and fail, in a pool that is nearly always too small."""

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4, 7]),
        num_blocks=st.integers(1, 12),
        step_tokens=st.sampled_from([16, 17, 40]),
    )
    def start(self, block_size: int, num_blocks: int, step_tokens: int) -> None:
        self.engine = PaperEngine(num_blocks=num_blocks, block_size=block_size, step_tokens=step_tokens)
        self.capacity = num_blocks * block_size
        self.tasks: list[TaskState] = []

    def add(self, specs: Sequence[RowSpec], namespace: str) -> None:
        rows = []
        for spec in specs:
            tokens = spec.tokens[: self.capacity]
            rows.append(RowSpec(tokens, min(spec.target, len(tokens)), min(spec.keep, len(tokens))).row())
        self.tasks.append(self.engine.add(rows, namespace=namespace))

    @rule(tasks=batches(num_batches=2, max_rows=4), namespace=namespaces)
    def arrive(self, tasks: list[list[RowSpec]], namespace: str) -> None:
        for specs in tasks:
            self.add(specs, namespace)

    @rule()
    def step(self) -> None:
        waiting = self.engine.scheduler.num_tasks
        self.engine.step()
        assert not waiting or self.engine.decoder.step is not None

    @precondition(lambda self: self.engine.scheduler.num_tasks)
    @rule()
    def fail(self) -> None:
        before = set(cached_prefixes(self.engine.cache))
        self.engine.decoder.fail = True
        ended = self.engine.step()
        self.engine.decoder.fail = False
        assert ended
        assert set(cached_prefixes(self.engine.cache)) <= before

    @precondition(lambda self: self.engine.scheduler.num_tasks)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.engine.scheduler.remove(data.draw(st.sampled_from(self.engine.scheduler.tasks())))

    @invariant()
    def every_promise_holds(self) -> None:
        if not hasattr(self, "engine"):
            return
        check_cache(self.engine.cache)
        tasks = self.engine.scheduler.tasks()
        assert [task for task in tasks if task.held] in ([], tasks[:1]), "a task that waits holds something"
        for task in self.tasks:
            assert_usage_adds_up(task)
        ran = sum(usage.computed_tokens + usage.recomputed_tokens for task in self.tasks for usage in usages(task))
        assert ran == sum(step.computed_tokens for step in self.engine.steps)
        held = [task.held for task in tasks if task.held]
        assert self.engine.cache._tree.pinned == {node for end in held for node in end.path()}

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        steps = 0
        while self.engine.scheduler.num_tasks:
            self.engine.step()
            self.every_promise_holds()
            steps += 1
            assert steps < 1000, "the queue does not get shorter"
        assert not self.engine.cache._tree.pinned


TestUnderPressure = SchedulerMachine.TestCase
TestUnderPressure.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
