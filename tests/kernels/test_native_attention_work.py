"""A step as it is cut for the attention in C: who sees which keys, in which order, and who shares them."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.api import SpanTable
from kernels.native import AttentionWork, cut
from kernels.native.attention_work import STRETCH, TILE_KEYS
from tests.kernels.cases import make_case, prefix_with_rows, random_trie

Key = tuple[int, bool, int]
"""Position, whether from the pool, packed row or slot along the block ids."""


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
@pytest.mark.parametrize("num_threads", [1, 16])
def test_every_query_sees_the_keys_of_its_spans_in_order_of_position(
    seed: int, max_tokens: int, num_threads: int
) -> None:
    table = random_table(seed, max_tokens)
    work = cut(table, group=3, kv_heads=3, num_threads=num_threads)

    for query in range(table.num_queries):
        parts = sorted(
            (work.items[first, 2], keys_of_items(work, first, end, query))
            for low, high, first, end, _ in work.units.tolist()
            if low <= query < high
        )
        assert [key for _, part in parts for key in part] == keys_of_spans(table, query)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_threads", [1, 16])
def test_items_begin_with_a_tile_and_end_before_the_next_unless_nobody_sees_more(seed: int, num_threads: int) -> None:
    work = cut(random_table(seed, 400), group=3, kv_heads=3, num_threads=num_threads)
    position, tokens, causal = work.items[:, 2], work.items[:, 3], work.items[:, 4].astype(bool)

    assert (position % TILE_KEYS == 0).all()
    assert (tokens > 0).all()
    assert (tokens[~causal] % TILE_KEYS == 0).all()
    assert (position // STRETCH == (position + tokens - 1) // STRETCH).all()


@pytest.mark.parametrize("num_threads", [1, 2, 16])
def test_every_query_is_answered_once_and_every_share_is_joined_in_order(num_threads: int) -> None:
    table = random_table(3, 700)
    work = cut(table, group=3, kv_heads=3, num_threads=num_threads)
    shares = {
        share: (low, high, work.items[first, 2]) for low, high, first, _, share in work.units.tolist() if share >= 0
    }

    whole = [(low, high) for low, high, _, _, share in work.units.tolist() if share < 0]
    joined = [(low, high) for low, high, *_ in work.joins.tolist()]
    assert sorted(query for low, high in whole + joined for query in range(low, high)) == [*range(table.num_queries)]
    assert (work.units[:, 1] - work.units[:, 0]).max() <= work.unit_tokens
    assert sorted(shares) == [*range(work.num_shares)]
    for low, high, first, end in work.joins.tolist():
        assert all(shares[share][:2] == (low, high) for share in range(first, end))
        stretches = [shares[share][2] // STRETCH for share in range(first, end)]
        assert stretches == sorted(set(stretches))
    assert bool(shares) is (num_threads == 16)


def test_rows_below_a_prefix_share_all_its_whole_tiles() -> None:
    table = make_case(prefix_with_rows(1000, [24] * 16), num_heads=2, num_kv_heads=1, head_dim=16).table
    work = cut(table, group=2, kv_heads=1, num_threads=1)

    below = work.items[~work.items[:, 4].astype(bool)]
    own = work.items[work.items[:, 4].astype(bool)]
    assert sorted(set(map(tuple, below[:, 2:4].tolist()))) == [(0, 512), (512, 480)]
    assert len(below) == 2 * len(work.units)
    assert set(map(tuple, own[:, 2:4].tolist())) == {(992, 32)}


def test_only_a_step_with_few_rows_is_split_along_its_keys() -> None:
    one, many = (
        make_case(prefix_with_rows(2000, [24] * rows), num_heads=9, num_kv_heads=3, head_dim=16).table
        for rows in (1, 40)
    )

    assert cut(one, group=3, kv_heads=3, num_threads=1).num_shares == 0
    assert cut(one, group=3, kv_heads=3, num_threads=2).num_shares == 4
    assert cut(many, group=3, kv_heads=3, num_threads=2).num_shares == 0


def test_empty_step_has_no_units() -> None:
    work = cut(make_case([], num_heads=2, num_kv_heads=1, head_dim=16).table, group=2, kv_heads=1, num_threads=2)

    assert (len(work.units), len(work.items), len(work.joins), work.num_shares) == (0, 0, 0, 0)
