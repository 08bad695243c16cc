"""A step as it is cut for the attention in C: who sees which keys, in which order, and who shares them."""

from __future__ import annotations

import ctypes
import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernels.api import KernelInputError, SpanTable
from kernels.checks import check_spans
from kernels.native import AttentionCut, AttentionWork, find_library
from tests.kernels.cases import Node, make_case, prefix_with_rows, random_trie

LIBRARY = find_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")

TILE_KEYS, STRETCH = 32, 512

Key = tuple[int, bool, int]
"""Position, whether from the pool, packed row or slot along the block ids."""


@pytest.fixture(scope="module")
def cut() -> AttentionCut:
    return AttentionCut(ctypes.CDLL(str(LIBRARY)))


def keys_of_items(work: AttentionWork, first: int, end: int, query: int) -> list[Key]:
    found: list[Key] = []
    for low, high, position, tokens, _, piece, skip in work.items[first:end].tolist():
        if low <= query < high:
            along = [
                (bool(from_pool), key_lo + n)
                for key_lo, length, from_pool in work.pieces[piece : piece + TILE_KEYS + 1].tolist()
                for n in range(length)
            ]
            found += [(position + n, *along[skip + n]) for n in range(tokens)]
    return found


def keys_of_spans(table: SpanTable, query: int) -> list[Key]:
    return sorted(
        (int(table.key_position[span]) + n, bool(table.from_pool[span]), int(table.key_lo[span]) + n)
        for span in range(table.num_spans)
        if table.query_lo[span] <= query < table.query_hi[span]
        for n in range(table.key_tokens[span])
    )


def random_table(seed: int, max_tokens: int) -> SpanTable:
    nodes = random_trie(np.random.default_rng(seed), num_nodes=12, max_tokens=max_tokens)
    return make_case(nodes, num_heads=9, num_kv_heads=3, head_dim=16, read_ratio=0.1, seed=seed).table


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_tokens", [9, 400])
@pytest.mark.parametrize("num_threads", [1, 2, 16])
def test_every_query_sees_the_keys_of_its_spans_in_order_of_position(
    cut: AttentionCut, seed: int, max_tokens: int, num_threads: int
) -> None:
    table = random_table(seed, max_tokens)
    work = cut(table, group=3, kv_heads=3, num_threads=num_threads)

    for head, query in product(range(3), range(table.num_queries)):
        parts = sorted(
            (work.items[first, 2], keys_of_items(work, first, end, query))
            for of, low, high, first, end, _ in work.units.tolist()
            if of == head and low <= query < high
        )
        assert [key for _, part in parts for key in part] == keys_of_spans(table, query)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_threads", [1, 16])
def test_items_begin_with_a_tile_and_end_before_the_next_unless_nobody_sees_more(
    cut: AttentionCut, seed: int, num_threads: int
) -> None:
    work = cut(random_table(seed, 400), group=3, kv_heads=3, num_threads=num_threads)
    position, tokens, causal = work.items[:, 2], work.items[:, 3], work.items[:, 4].astype(bool)

    assert (position % TILE_KEYS == 0).all()
    assert (tokens > 0).all()
    assert (tokens[~causal] % TILE_KEYS == 0).all()
    assert (position // STRETCH == (position + tokens - 1) // STRETCH).all()


@pytest.mark.parametrize("num_threads", [1, 16])
def test_items_are_of_queries_of_their_unit(cut: AttentionCut, num_threads: int) -> None:
    work = cut(random_table(3, 700), group=3, kv_heads=3, num_threads=num_threads)

    for _, low, high, first, end, _ in work.units.tolist():
        assert (work.items[first:end, 0] >= low).all()
        assert (work.items[first:end, 1] <= high).all()
        assert (work.items[first:end, 0] < work.items[first:end, 1]).all()


@pytest.mark.parametrize("num_threads", [1, 2, 16])
def test_every_query_is_answered_once_for_each_head_and_every_share_is_joined_in_order(
    cut: AttentionCut, num_threads: int
) -> None:
    table = random_table(3, 700)
    work = cut(table, group=3, kv_heads=3, num_threads=num_threads)
    shares = {
        share: (head, low, high, work.items[first, 2])
        for head, low, high, first, _, share in work.units.tolist()
        if share >= 0
    }

    whole = [(head, low, high) for head, low, high, _, _, share in work.units.tolist() if share < 0]
    joined = [(head, low, high) for head, low, high, *_ in work.joins.tolist()]
    answered = sorted((head, query) for head, low, high in whole + joined for query in range(low, high))
    assert answered == [*product(range(3), range(table.num_queries))]
    assert (work.units[:, 2] - work.units[:, 1]).max() <= work.unit_tokens
    assert sorted(shares) == [*range(work.num_shares)]
    for *of, first, end in work.joins.tolist():
        assert all(shares[share][:3] == tuple(of) for share in range(first, end))
        stretches = [shares[share][3] // STRETCH for share in range(first, end)]
        assert stretches == sorted(set(stretches))
    assert bool(shares) is (num_threads == 16)


def test_rows_below_a_prefix_share_all_its_whole_tiles(cut: AttentionCut) -> None:
    table = make_case(prefix_with_rows(1000, [24] * 16), num_heads=2, num_kv_heads=1, head_dim=16).table
    work = cut(table, group=2, kv_heads=1, num_threads=1)

    below = work.items[~work.items[:, 4].astype(bool)]
    own = work.items[work.items[:, 4].astype(bool)]
    assert sorted(set(map(tuple, below[:, 2:4].tolist()))) == [(0, 512), (512, 480)]
    assert len(below) == 2 * len(work.units)
    assert set(map(tuple, own[:, 2:4].tolist())) == {(992, 32)}


def test_only_a_step_with_few_rows_is_split_along_its_keys(cut: AttentionCut) -> None:
    one, many = (
        make_case(prefix_with_rows(2000, [24] * rows), num_heads=9, num_kv_heads=3, head_dim=16).table
        for rows in (1, 40)
    )

    assert cut(one, group=3, kv_heads=3, num_threads=1).num_shares == 0
    assert cut(one, group=3, kv_heads=3, num_threads=16).num_shares == 3 * 4
    assert cut(many, group=3, kv_heads=3, num_threads=2).num_shares == 0


@pytest.mark.parametrize(
    ("kv_heads", "num_threads", "split"), [(1, 2, [0]), (3, 2, [2]), (4, 2, []), (2, 3, [0, 1]), (5, 3, [3, 4])]
)
def test_heads_that_threads_cannot_share_out_evenly_are_split_and_others_whole(
    cut: AttentionCut, kv_heads: int, num_threads: int, split: list[int]
) -> None:
    nodes = prefix_with_rows(2000, [24])
    table = make_case(nodes, num_heads=3 * kv_heads, num_kv_heads=kv_heads, head_dim=16).table
    work = cut(table, group=3, kv_heads=kv_heads, num_threads=num_threads)

    whole = [head for head in range(kv_heads) if head not in split]
    assert work.units[:, 0].tolist() == whole + [head for head in split for _ in range(3)] + split
    assert (work.units[:, 5] < 0).tolist() == [True] * len(whole) + [False] * 4 * len(split)
    assert work.joins[:, 0].tolist() == split


def test_as_many_heads_stay_whole_in_each_run_whatever_prefix_it_sees(cut: AttentionCut) -> None:
    """Six pairs of run and head would come out even for two threads, but those of one run are far more work."""
    nodes = [*prefix_with_rows(2000, [32]), Node(parent=None, tokens=600, cached=True)]
    nodes.append(Node(parent=2, tokens=32, cached=False))
    work = cut(make_case(nodes, num_heads=9, num_kv_heads=3, head_dim=16).table, group=3, kv_heads=3, num_threads=2)

    whole = work.units[work.units[:, 5] < 0]
    assert sorted(whole[:, :3].tolist()) == [[head, low, low + 32] for head in (0, 1) for low in (0, 32)]
    assert sorted(work.joins[:, :3].tolist()) == [[2, 0, 32], [2, 32, 64]]


def test_empty_step_has_no_units(cut: AttentionCut) -> None:
    work = cut(make_case([], num_heads=2, num_kv_heads=1, head_dim=16).table, group=2, kv_heads=1, num_threads=2)

    assert (len(work.units), len(work.items), len(work.joins), work.num_shares) == (0, 0, 0, 0)


@pytest.mark.parametrize("num_threads", [1, 16])
def test_units_with_most_pairs_of_query_and_key_come_first(cut: AttentionCut, num_threads: int) -> None:
    work = cut(random_table(1, 700), group=3, kv_heads=3, num_threads=num_threads)

    pairs = [
        sum((high - low) * tokens for low, high, _, tokens, *_ in work.items[first:end].tolist())
        for _, _, _, first, end, _ in work.units.tolist()
    ]
    assert len(set(pairs)) > 1
    assert pairs == sorted(pairs, reverse=True)


def test_units_of_equal_work_stay_in_order_of_their_queries_and_heads(cut: AttentionCut) -> None:
    table = make_case(prefix_with_rows(0, [32] * 40), num_heads=6, num_kv_heads=2, head_dim=16).table
    work = cut(table, group=3, kv_heads=2, num_threads=20)

    assert work.units[:, :3].tolist() == [[head, low, low + 32] for low in range(0, 40 * 32, 32) for head in (0, 1)]


@pytest.mark.parametrize("rows", [1, 3000])
def test_c_finds_the_arrays_of_a_cut_and_of_the_step_where_it_is_told(cut: AttentionCut, rows: int) -> None:
    table = make_case(prefix_with_rows(40, [1] * rows), num_heads=2, num_kv_heads=1, head_dim=16).table
    work = cut(table, group=2, kv_heads=1, num_threads=2)

    wanted = (work.units, work.items, work.pieces, work.joins, table.positions, table.block_ids)
    for address, array in zip(work.addresses, wanted, strict=True):
        assert (ctypes.c_int32 * array.size).from_address(address)[:] == array.ravel().tolist()


def test_order_of_spans_changes_neither_units_nor_what_their_items_see(cut: AttentionCut) -> None:
    table = random_table(2, 400)
    order = np.lexsort((table.key_position, table.query_lo))
    names = ("query_lo", "query_hi", "key_lo", "key_tokens", "key_position", "from_pool", "causal")
    in_order = dataclasses.replace(table, **{name: getattr(table, name)[order] for name in names})
    one, other = (cut(spans, group=3, kv_heads=3, num_threads=2) for spans in (table, in_order))

    assert one.units.tolist() == other.units.tolist()
    assert sorted(map(tuple, one.items[:, :5].tolist())) == sorted(map(tuple, other.items[:, :5].tolist()))


def test_spans_that_overlap_are_refused(cut: AttentionCut) -> None:
    """The check of span tables does not see them, since each begins where another ends."""
    table = make_case(prefix_with_rows(40, [3]), num_heads=2, num_kv_heads=1, head_dim=16).table
    names = ("query_lo", "query_hi", "key_lo", "key_tokens", "key_position", "from_pool", "causal")
    prefix = np.flatnonzero(table.from_pool)
    columns: dict[str, Any] = {name: np.append(getattr(table, name), getattr(table, name)[prefix]) for name in names}
    columns["key_tokens"][-1] += 1
    overlapping = dataclasses.replace(table, **columns)

    check_spans(overlapping)
    with pytest.raises(KernelInputError, match="got spans that overlap"):
        cut(overlapping, group=2, kv_heads=1, num_threads=2)
