from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from kernels.api import KernelInputError, SpanTable
from kernels.checks import check_span_table
from tests.kernels.cases import make_table, prefix_with_rows, random_trie, two_rows_below_a_prefix


def changed(**fields: Any) -> SpanTable:
    arrays: dict[str, Any] = {n: np.array(v) if isinstance(v, list) else v for n, v in fields.items()}
    return dataclasses.replace(two_rows_below_a_prefix(), **arrays)


def test_a_good_table_tells_how_far_it_reaches() -> None:
    reach = check_span_table(two_rows_below_a_prefix(), num_fresh=5, num_slots=80)

    assert (reach.fresh_rows, reach.slots) == (5, 80)


@pytest.mark.parametrize("seed", range(10))
def test_random_tries_are_good_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    built, num_fresh, num_blocks = make_table(random_trie(rng, num_nodes=12, max_tokens=40), block_size=16, rng=rng)

    check_span_table(built, num_fresh=num_fresh, num_slots=num_blocks * 16)


def test_a_step_without_a_pool_reaches_no_slot() -> None:
    rng = np.random.default_rng(0)
    built, num_fresh, _ = make_table(prefix_with_rows(0, [4, 2]), block_size=16, rng=rng)

    assert check_span_table(built, num_fresh=num_fresh, num_slots=0).slots == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query_lo": [0, 0]}, r"query_hi: shape \[2\] wanted, got \[3\]"),
        ({"query_lo": [-1, 0, 3]}, "query_lo: at least 0 wanted, got -1 in span 0"),
        ({"query_hi": [5, 3, 2]}, "query_hi: at least query_lo wanted, got 2 in span 2"),
        ({"query_hi": [6, 3, 5]}, "query_hi: at most 5 wanted, got 6 in span 0"),
        ({"key_tokens": [20, 0, 2]}, "key_tokens: at least 1 wanted, got 0 in span 1"),
        ({"key_lo": [0, -2, 3]}, "key_lo: at least 0 wanted, got -2 in span 1"),
        ({"key_position": [0, 20, -1]}, "key_position: at least 0 wanted, got -1 in span 2"),
        (
            {"key_position": [0, 20, 19]},
            "key_position: 0 or the end of another span of the same rows wanted, got 19 in span 2",
        ),
        (
            {"query_hi": [4, 3, 5]},
            "key_position: 0 or the end of another span of the same rows wanted, got 20 in span 2",
        ),
        ({"key_lo": [13, 0, 3]}, r"key_lo \+ key_tokens of a pool span: at most 32 wanted, got 33 in span 0"),
        ({"causal": [True, True, True]}, "causal: only on spans of fresh keys wanted, got True in span 0"),
        ({"causal": [False, True, False]}, "causal: 1 causal span for query row 3 wanted, got 0"),
        ({"query_hi": [5, 4, 5]}, "causal: 1 causal span for query row 3 wanted, got 2"),
        ({"block_ids": [4, -1]}, "block_ids: at least 0 wanted, got -1"),
        ({"block_ids": [5, 1]}, "block_ids: blocks within 80 slots wanted, got 96"),
        ({"key_lo": [0, 0, 4]}, "key_lo: fresh keys within 5 packed rows wanted, got 6"),
        ({"block_size": 0}, "block_size: at least 1 wanted, got 0"),
    ],
)
def test_a_bad_table_is_refused_with_field_value_and_limit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        check_span_table(changed(**fields), num_fresh=5, num_slots=80)
