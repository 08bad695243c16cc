from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix_tree import PrefixTree, Segment
from engine.row_order import common_prefix, order_rows
from engine.step_trie import PathClaims, StepRow, StepTrie, TrieNode
from tests.helpers.paper_engine import make_task
from tests.helpers.tries import RowSpec, Tokens, batches

Claim = tuple[list[int], int, int]
"""Tokens of a row, and the positions from which and to which it claims."""


@st.composite
def claims_in_order(draw: st.DrawFn) -> list[Claim]:
    rows = sorted(draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=10), min_size=1, max_size=8)))
    drawn = []
    for row in rows:
        end = draw(st.integers(1, len(row)))
        drawn.append((row, draw(st.integers(0, end - 1)), end))
    return drawn


def positions(intervals: Sequence[tuple[int, int]]) -> list[int]:
    return [position for low, high in intervals for position in range(low, high)]


class TestPathClaims:
    @settings(deadline=None, max_examples=300)
    @given(rows=claims_in_order())
    def test_every_position_of_the_trie_is_taken_once_by_the_first_row_that_needs_it(self, rows: list[Claim]) -> None:
        claims = PathClaims()
        taken: set[tuple[int, ...]] = set()
        before: list[int] = []
        for row, start, end in rows:
            claims.approach(common_prefix(np.array(before), np.array(row)))
            new = [position for position in range(start, end) if tuple(row[: position + 1]) not in taken]

            assert positions(claims.missing(start, end)) == new
            assert positions(claims.claim(start, end)) == new
            assert claims.missing(start, end) == []
            taken |= {tuple(row[: position + 1]) for position in new}
            before = row

    @settings(deadline=None, max_examples=300)
    @given(rows=claims_in_order())
    def test_what_the_next_row_shares_is_covered_up_to_the_last_position_that_is_taken(self, rows: list[Claim]) -> None:
        claims = PathClaims()
        taken: set[tuple[int, ...]] = set()
        before: list[int] = []
        for row, start, end in rows:
            common = common_prefix(np.array(before), np.array(row))
            claims.approach(common)
            shared = [stop for stop in range(1, common + 1) if tuple(row[:stop]) in taken]

            assert claims.covered == max(shared, default=0)
            claims.claim(start, end)
            taken |= {tuple(row[: position + 1]) for position in range(start, end)}
            before = row


def step_rows(specs: Sequence[RowSpec], stored: Sequence[RowSpec], ends: Sequence[float]) -> list[StepRow]:
    """Rows in order, the first part of each known after the step, against a tree that holds ``stored``."""
    tree = PrefixTree(4)
    for spec in sorted(stored, key=lambda spec: spec.tokens):
        tokens = np.array(spec.tokens, dtype=np.int32)
        match = tree.match("a", tokens)
        parent = match.last
        if match.depth < parent.end:
            parent = tree.split(parent, match.depth - parent.start)
        if match.depth < len(tokens):
            rest = tokens[match.depth :]
            tree.insert(parent, rest, Segment(tuple(range(-(-len(rest) // 4))), 0, len(rest)), 0)
    task = make_task([spec.row() for spec in specs])
    rows = []
    for place, share in zip(task.order.order, ends, strict=False):
        state = task.rows[place]
        match = tree.match("a", state.row.tokens)
        start, length = state.fresh_from(match), len(state.row.tokens)
        end = length - int(share * (length - start))
        rows.append(StepRow(task, state, end, min(end, state.row.keep_tokens), match))
    return rows


def prefixes(row: StepRow, low: int, high: int) -> list[Tokens]:
    return [tuple(row.tokens[: position + 1].tolist()) for position in range(low, high)]


def below(trie: StepTrie, node: TrieNode) -> list[TrieNode]:
    return [node, *(each for child in children(trie, node) for each in below(trie, child))]


def children(trie: StepTrie, node: TrieNode) -> list[TrieNode]:
    return [child for child in trie.nodes if child.parent is node]


class TestStepTrie:
    @settings(deadline=None, max_examples=300)
    @given(
        drawn=batches(num_batches=2, max_rows=8, max_tokens=20),
        ends=st.lists(st.sampled_from([0.0, 0.0, 0.3, 0.9]), min_size=8, max_size=8),
    )
    def test_lays_out_what_is_new_once_and_every_subtree_in_one_range(
        self, drawn: list[list[RowSpec]], ends: list[float]
    ) -> None:
        rows = step_rows(drawn[0], drawn[-1] if len(drawn) > 1 else [], ends)
        tokens = [row.tokens for row in rows]
        common = [0, *(common_prefix(left, right) for left, right in pairwise(tokens))]

        trie = StepTrie(rows, common)

        packed: list[Tokens] = []
        for node in trie.nodes:
            assert node.packed == len(packed)
            assert node.low <= node.fresh_low <= node.high
            assert node.low < node.high
            packed += prefixes(node.row, node.fresh_low, node.high)
            if node.fresh_low > node.low:
                assert node.row.match.depth >= node.fresh_low, "called cached what is not"
        assert trie.num_fresh == len(packed)
        assert sorted(packed) == sorted({p for row in rows for p in prefixes(row, row.fresh_from, row.end)})
        for node in trie.nodes:
            assert node.packed_end - node.packed == sum(each.num_fresh for each in below(trie, node))
            for child in children(trie, node):
                assert child.low == node.high
            first_tokens = [int(child.row.tokens[child.low]) for child in children(trie, node)]
            assert len(set(first_tokens)) == len(first_tokens)

        for row, end in zip(rows, trie.ends, strict=True):
            assert end.high == row.end
            assert prefixes(end.row, 0, end.high) == prefixes(row, 0, row.end)
            places = trie.packed_places(end, row.fresh_from, row.end)
            assert [packed[place] for place in places] == prefixes(row, row.fresh_from, row.end)

    @settings(deadline=None, max_examples=200)
    @given(drawn=batches(num_batches=1, max_rows=8, max_tokens=20))
    def test_a_node_stays_as_far_as_any_row_through_it_wants(self, drawn: list[list[RowSpec]]) -> None:
        rows = step_rows(drawn[0], [], [0.0] * 8)
        order = order_rows([row.tokens for row in rows])

        trie = StepTrie(rows, order.common)

        kept = {p for node in trie.nodes for p in prefixes(node.row, node.low, min(node.keep, node.high))}
        assert kept == {p for row in rows for p in prefixes(row, 0, row.keep)}

    def test_equal_rows_end_in_one_node(self) -> None:
        rows = step_rows([RowSpec((1, 2, 3)), RowSpec((1, 2, 3)), RowSpec((1, 2))], [], [0.0] * 3)

        trie = StepTrie(rows, [0, 2, 3])

        assert trie.ends[1] is trie.ends[2]
        assert trie.ends[1].parent is trie.ends[0]
        assert trie.num_fresh == 3

    def test_rows_of_different_namespaces_share_nothing(self) -> None:
        rows = step_rows([RowSpec((1, 2, 3)), RowSpec((1, 2, 3))], [], [0.0] * 2)

        assert StepTrie(rows, [0, 0]).num_fresh == 6

    def test_a_place_that_is_not_computed_is_not_given_out(self) -> None:
        (row,) = step_rows([RowSpec((1, 2, 3, 4))], [RowSpec((1, 2))], [0.0])
        trie = StepTrie([row], [0])

        with pytest.raises(AssertionError, match="a position that is read is computed"):
            trie.packed_places(trie.ends[0], 1, 4)
