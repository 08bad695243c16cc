from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.records import TokenIds
from engine.row_order import common_prefix, no_tokens, order_rows, sort_key

tokens = st.one_of(
    st.lists(st.integers(0, 2), max_size=8),
    st.lists(st.sampled_from([0, 1, 255, 256, 257, 65_535, 65_536, 2**24, 2**31 - 1]), max_size=5),
)


def ids(row: list[int]) -> TokenIds:
    return np.array(row, dtype=np.int32)


def shared(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


@settings(deadline=None)
@given(left=tokens, right=tokens)
@example(left=[], right=[])
@example(left=[1], right=[1, 2])
@example(left=[1, 2, 3], right=[1, 9, 3])
def test_common_prefix_counts_equal_tokens_from_the_first(left: list[int], right: list[int]) -> None:
    assert common_prefix(ids(left), ids(right)) == shared(left, right)


@settings(deadline=None)
@given(left=tokens, right=tokens)
def test_keys_sort_as_the_token_lists_do(left: list[int], right: list[int]) -> None:
    assert (sort_key(ids(left)) < sort_key(ids(right))) == (left < right)
    assert (sort_key(ids(left)) == sort_key(ids(right))) == (left == right)


@settings(deadline=None, max_examples=200)
@given(rows=st.lists(tokens, min_size=1, max_size=10))
def test_rows_are_sorted_and_neighbours_say_what_any_two_share(rows: list[list[int]]) -> None:
    order = order_rows([ids(row) for row in rows])

    in_order = [rows[index] for index in order.order]
    assert sorted(order.order) == list(range(len(rows)))
    assert in_order == sorted(rows)
    assert order.common[0] == 0
    for first in range(len(rows)):
        for last in range(first + 1, len(rows)):
            assert min(order.common[first + 1 : last + 1]) == shared(in_order[first], in_order[last])


@settings(deadline=None)
@given(rows=st.lists(tokens, min_size=1, max_size=10))
def test_unique_tokens_are_the_positions_of_the_trie(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}

    assert order_rows([ids(row) for row in rows]).unique_tokens == len(prefixes)


def test_equal_rows_keep_their_order() -> None:
    assert order_rows([ids([5, 6]), ids([1]), ids([5, 6]), ids([5, 6])]).order == (1, 0, 2, 3)


def test_no_tokens_is_an_empty_row() -> None:
    assert no_tokens().shape == (0,)
    assert no_tokens().dtype == np.int32
