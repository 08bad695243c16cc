from __future__ import annotations

import numpy as np
import pytest

from engine.prefix_tree import Match, Node, PrefixTree, Segment
from engine.records import LabelOutcome, RowUsage, ScoreResult, Unscored
from engine.sequence import RowState, first_read
from tests.helpers.paper_engine import make_task
from tests.helpers.tries import make_row

SCORED = LabelOutcome(logits=(1.0,), log_sum_exp=None)


def path(*lengths: int, depth: int | None = None) -> Match:
    """A match through nodes of these lengths, as deep as they are unless told. The ``n``-th was born at ``n``."""
    tree = PrefixTree(4)
    match = Match(tree.root("a"))
    node: Node = match.root
    for length in lengths:
        node = tree.insert(node, np.zeros(length, dtype=np.int32), Segment((0,), 0, length), 0)
        match.nodes.append(node)
    match.depth = node.end if depth is None else depth
    return match


class TestFirstRead:
    def test_of_labels_is_the_last_position(self) -> None:
        assert first_read(make_row([1, 2, 3])) == 2

    @pytest.mark.parametrize(("target", "first"), [(1, 2), (2, 1), (3, 0)])
    def test_of_a_target_is_as_far_from_the_end_as_it_is_long(self, target: int, first: int) -> None:
        assert first_read(make_row([1, 2, 3], target=target)) == first


class TestFreshFrom:
    def test_is_where_the_cache_ends(self) -> None:
        assert RowState(make_row([0] * 9)).fresh_from(path(5)) == 5

    def test_is_before_what_is_read_even_if_that_is_cached(self) -> None:
        assert RowState(make_row([0] * 9)).fresh_from(path(9)) == 8
        assert RowState(make_row([0] * 9, target=4)).fresh_from(path(9)) == 5


class TestAccount:
    def test_tells_what_was_there_at_first_from_what_was_computed_since(self) -> None:
        state = RowState(make_row([0] * 10))

        state.account(path(3, 4), end=10, fresh_from=7, new=[(7, 10)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=10, cached_tokens=3, shared_tokens=4, computed_tokens=3)

    def test_counts_what_another_row_computes_in_the_same_step_as_shared(self) -> None:
        state = RowState(make_row([0] * 10))

        state.account(path(3), end=10, fresh_from=3, new=[(8, 10)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=10, cached_tokens=3, shared_tokens=5, computed_tokens=2)

    def test_counts_what_is_cached_but_read_as_computed(self) -> None:
        state = RowState(make_row([0] * 10, target=6))

        state.account(path(10), end=10, fresh_from=4, new=[(4, 10)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=10, cached_tokens=4, shared_tokens=0, computed_tokens=6)

    def test_counts_a_node_that_is_matched_in_part_in_part(self) -> None:
        state = RowState(make_row([0] * 10))

        state.account(path(8, depth=6), end=10, fresh_from=6, new=[(6, 10)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=10, cached_tokens=6, shared_tokens=0, computed_tokens=4)

    def test_counts_every_position_of_a_row_in_chunks_once(self) -> None:
        state = RowState(make_row([0] * 10))

        state.account(path(2), end=6, fresh_from=2, new=[(2, 6)], began=1)
        state.account(path(2, 4), end=10, fresh_from=6, new=[(6, 9)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=10, cached_tokens=2, shared_tokens=1, computed_tokens=7)

    def test_counts_what_was_evicted_in_between_apart(self) -> None:
        state = RowState(make_row([0] * 10))

        state.account(path(2), end=6, fresh_from=2, new=[(2, 6)], began=1)
        state.account(path(), end=10, fresh_from=0, new=[(0, 10)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=10, cached_tokens=2, computed_tokens=8, recomputed_tokens=6)

    def test_counts_a_chunk_that_ends_before_what_is_settled_as_run_again(self) -> None:
        state = RowState(make_row([0] * 10))

        state.account(path(2), end=6, fresh_from=2, new=[(2, 6)], began=1)
        state.account(path(), end=4, fresh_from=0, new=[(0, 4)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=6, cached_tokens=2, computed_tokens=4, recomputed_tokens=4)

    def test_of_a_row_whose_beginning_is_counted_elsewhere_counts_the_rest(self) -> None:
        state = RowState(make_row([0] * 10), counted_from=9)

        state.account(path(5), end=10, fresh_from=5, new=[(5, 10)], began=1)

        assert state.usage() == RowUsage(prompt_tokens=1, computed_tokens=1, recomputed_tokens=4)


class TestTask:
    def test_is_finished_when_every_row_has_an_outcome_whatever_the_order(self) -> None:
        task = make_task([make_row([9]), make_row([1]), make_row([5])])
        finished = []
        for index in (1, 0, 2):
            task.rows[index].outcome = SCORED
            task.advance()
            finished.append((task.cursor, task.finished))

        assert finished == [(1, False), (1, False), (3, True)]

    def test_gives_rows_in_the_order_of_the_request_and_names_those_that_ran_out_of_time(self) -> None:
        task = make_task([make_row([9, 9]), make_row([1])], task_id="seven")
        task.rows[0].outcome = SCORED
        task.rows[0].account(path(), end=2, fresh_from=0, new=[(0, 2)], began=0)

        result = task.result("partial")

        assert isinstance(result, ScoreResult)
        assert [row.outcome for row in result.rows] == [SCORED, Unscored(reason="deadline")]
        assert [row.usage.prompt_tokens for row in result.rows] == [2, 0]
        assert (result.stats.task_id, result.stats.end, result.stats.num_rows) == ("seven", "partial", 2)

    def test_knows_how_early_any_row_that_is_left_reads(self) -> None:
        rows = [make_row([3] * 8), make_row([1] * 4), make_row([2] * 9, target=7), make_row([4] * 6)]

        task = make_task(rows)

        in_order = [task.rows[index].first_read_from_here for index in task.order.order]
        assert in_order == [2, 2, 5, 5]

    def test_expects_to_compute_its_unique_tokens_at_first(self) -> None:
        assert make_task([make_row([1, 2, 3]), make_row([1, 2, 4])]).queued_tokens == 4

    def test_that_never_ran_has_no_times_but_waiting(self) -> None:
        stats = make_task([make_row([1])]).stats("closed")

        assert (stats.prefill_s, stats.readout_s, stats.first_score_s, stats.num_steps) == (0, 0, None, 0)
        assert 0 <= stats.queue_s <= stats.total_s
