"""The check of span tables in C lets through what the one in Python accepts, and leaves the rest to that."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest

from kernels.api import KernelInputError, SpanTable
from kernels.checks import SpanReach, check_spans
from kernels.cpu import CpuKernels
from kernels.native import NativeSpanCheck, find_library, load_native_ops
from tests.kernels.cases import keep_queries, make_table, prefix_with_rows, random_trie, two_rows_below_a_prefix

LIBRARY = find_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")

COLUMNS = ("query_lo", "query_hi", "key_lo", "key_tokens", "key_position", "from_pool", "causal")


@pytest.fixture(scope="module")
def check() -> NativeSpanCheck:
    return NativeSpanCheck(ctypes.CDLL(str(LIBRARY)))


def random_table(seed: int) -> SpanTable:
    rng = np.random.default_rng(seed)
    nodes = random_trie(rng, num_nodes=int(rng.integers(1, 14)), max_tokens=int(rng.choice([3, 40])))
    table, num_fresh, _ = make_table(nodes, block_size=int(rng.choice([1, 16])), rng=rng)
    kept = rng.random(num_fresh) < rng.choice([0.1, 1.0])
    kept[0] = True
    return keep_queries(table, np.flatnonzero(kept).astype(np.int32))


def in_order(table: SpanTable) -> SpanTable:
    order = np.lexsort((table.key_position, table.query_lo))
    return dataclasses.replace(table, **{name: getattr(table, name)[order] for name in COLUMNS})


def judged(table: SpanTable) -> SpanReach | None:
    try:
        return check_spans(table)
    except KernelInputError:
        return None


@pytest.mark.parametrize("seed", range(30))
def test_good_tables_pass_and_reach_as_far(check: NativeSpanCheck, seed: int) -> None:
    table = random_table(seed)

    assert check(table) == judged(table) is not None
    assert check(in_order(table)) == judged(table)


@pytest.mark.parametrize("seed", range(300))
def test_nothing_passes_that_is_refused_in_python(check: NativeSpanCheck, seed: int) -> None:
    """One number of a good table is another by a little or by much."""
    rng = np.random.default_rng(seed)
    table = random_table(seed % 30)
    name = str(rng.choice([*COLUMNS, "block_ids"] if len(table.block_ids) else COLUMNS))
    column = getattr(table, name).copy()
    place = rng.integers(len(column))
    wrong = [-(2**31), column[place] - 1, column[place] + 1, 2**31 - 1]
    column[place] = not column[place] if column.dtype == np.bool_ else rng.choice(wrong)
    changed = dataclasses.replace(table, **{name: column})

    passed = check(changed)

    assert passed is None or passed == judged(changed)


@pytest.mark.parametrize(
    "fields",
    [
        {"query_lo": [-1, 0, 3]},
        {"query_hi": [5, 3, 2]},
        {"query_hi": [6, 3, 5]},
        {"query_hi": [5, 3]},
        {"key_tokens": [20, 0, 2]},
        {"key_lo": [0, -2, 3]},
        {"key_position": [0, 20, -1]},
        {"key_position": [0, 20, 19]},
        {"query_hi": [4, 3, 5]},
        {"key_lo": [13, 0, 3]},
        {"causal": [True, True, True]},
        {"causal": [False, True, False]},
        {"query_hi": [5, 4, 5]},
        {"block_ids": [4, -1]},
        {"block_size": 0},
    ],
    ids=str,
)
def test_every_fault_that_is_named_in_python_is_found(check: NativeSpanCheck, fields: dict[str, Any]) -> None:
    good = two_rows_below_a_prefix()
    arrays = {name: getattr(good, name).dtype.type(value) for name, value in fields.items() if isinstance(value, list)}
    changed = dataclasses.replace(good, **{**fields, **arrays})

    assert check(good) == SpanReach(fresh_rows=5, slots=80)
    assert judged(changed) is None
    assert check(changed) is None


def test_span_without_rows_is_good_and_one_with_fewer_is_not(check: NativeSpanCheck) -> None:
    table, _, _ = make_table(prefix_with_rows(20, [3]), block_size=16, rng=np.random.default_rng(0))
    more: dict[str, Any] = {name: np.append(getattr(table, name), getattr(table, name)[:1]) for name in COLUMNS}
    more["query_lo"][-1], more["query_hi"][-1], more["causal"][-1] = 2, 2, False
    without = dataclasses.replace(table, **more)
    fewer = dataclasses.replace(without, query_hi=without.query_hi - np.array([0, 0, 1], np.int32))

    assert check(without) == judged(without) is not None
    assert check(fewer) is judged(fewer) is None


def test_blocks_of_no_tokens_are_refused_in_a_step_without_a_pool(check: NativeSpanCheck) -> None:
    table, _, _ = make_table(prefix_with_rows(0, [3]), block_size=16, rng=np.random.default_rng(0))

    assert check(table) == SpanReach(fresh_rows=3, slots=0)
    assert check(dataclasses.replace(table, block_size=0)) is None


def test_plan_says_what_is_wrong_in_the_words_of_the_check_in_python() -> None:
    table, _, _ = make_table(prefix_with_rows(20, [3]), block_size=16, rng=np.random.default_rng(0))
    negative = dataclasses.replace(table, key_lo=table.key_lo - 1)

    with pytest.raises(KernelInputError, match="key_lo: at least 0 wanted, got -1 in span 0"):
        CpuKernels(load_native_ops()).plan(negative)


def test_columns_of_another_dtype_are_refused(check: NativeSpanCheck) -> None:
    table, _, _ = make_table(prefix_with_rows(20, [3]), block_size=16, rng=np.random.default_rng(0))

    with pytest.raises(KernelInputError, match="int32 numbers and bool flags wanted, got int32, int64, int32"):
        check(dataclasses.replace(table, query_hi=table.query_hi.astype(np.int64)))
