"""The cut of a step, on the host: every visible (row, key) pair is walked exactly once."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.api import SpanTable
from kernels.reference import ReferenceKernels
from kernels.triton.plan import Geometry, Segment, WorkList, build
from tests.kernels.cases import Node, keep_queries, make_table, prefix_with_rows, random_trie


def make(nodes: list[Node], *, seed: int = 0, block_size: int = 16) -> SpanTable:
    return make_table(nodes, block_size=block_size, rng=np.random.default_rng(seed))[0]


def geometry(**changes: int | None) -> Geometry:
    fields: dict[str, int | None] = {"tile_tokens": 8, "tile_keys": 16, "window": None, "target_units": 0, **changes}
    return Geometry(**fields)  # type: ignore[arg-type]


def walked(work: WorkList, table: SpanTable, window: int | None) -> dict[tuple[int, bool, int], int]:
    """How often each (row, from pool, slot or packed row) is seen, walking as the kernel does."""
    seen: dict[tuple[int, bool, int], int] = {}
    for token_lo, token_hi, _, *bounds in work.units.tolist():
        for segment in Segment:
            for item in range(bounds[segment], bounds[segment + 1]):
                first, end, query_lo, query_hi, shift, own = work.items[item].tolist()
                masked = segment in {Segment.POOL_MASKED, Segment.FRESH_MASKED}
                for row in range(token_lo, token_hi):
                    for index in range(first, end):
                        if masked and not query_lo <= row < query_hi:
                            continue
                        if masked and own and not work.rows[1, row] <= index < work.rows[2, row]:
                            continue
                        if masked and not own and window and work.rows[0, row] - (index + shift) >= window:
                            continue
                        pool = segment in {Segment.POOL_BULK, Segment.POOL_MASKED}
                        block, in_block = divmod(index, table.block_size)
                        at = int(table.block_ids[block]) * table.block_size + in_block if pool else index
                        seen[row, pool, at] = seen.get((row, pool, at), 0) + 1
    return seen


def visible(table: SpanTable, window: int | None) -> set[tuple[int, bool, int]]:
    plan = ReferenceKernels().plan(table)
    mask = plan.visible if window is None else plan.visible & (plan.distance < window)
    return {(int(q), bool(plan.from_pool[k]), int(plan.source[k])) for q, k in np.argwhere(mask)}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("target_units", [0, 3, 1000])
def test_every_visible_pair_is_walked_once(seed: int, window: int | None, target_units: int) -> None:
    rng = np.random.default_rng(seed)
    table, num_fresh, _ = make_table(random_trie(rng, num_nodes=7, max_tokens=40), block_size=8, rng=rng)
    if seed % 3 == 2:
        table = keep_queries(table, np.flatnonzero(rng.random(num_fresh) < 0.3).astype(np.int32))
    if not table.num_queries:
        pytest.fail("the case has no rows")
    cut = geometry(tile_tokens=int(rng.choice([1, 5, 8, 32])), window=window, target_units=target_units)
    seen = walked(build(table, cut), table, window)

    assert set(seen) == visible(table, window)
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("seed", range(4))
def test_every_row_stands_in_one_tile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = make(random_trie(rng, num_nodes=9, max_tokens=50), seed=seed)
    work = build(table, geometry())
    rows = [row for lo, hi, *_ in work.units.tolist() for row in range(lo, hi)]

    assert sorted(rows) == list(range(table.num_queries))
    assert max(hi - lo for lo, hi, *_ in work.units.tolist()) <= 8


def test_rows_of_different_requests_share_a_tile_and_one_walk_of_the_prefix() -> None:
    work = build(make(prefix_with_rows(64, [2, 1, 3, 2])), geometry())

    assert work.units[:, :2].tolist() == [[0, 8]]
    pool_bulk = work.items[work.units[0, 3] : work.units[0, 4]]
    assert (pool_bulk[:, 1] - pool_bulk[:, 0]).tolist() == [64]


def test_bulk_runs_are_whole_key_tiles_that_every_row_sees() -> None:
    table = make(prefix_with_rows(100, [30, 2, 1, 40]))
    work = build(table, geometry())
    for token_lo, token_hi, _, *bounds in work.units.tolist():
        for first, end, query_lo, query_hi, *_ in work.items[bounds[0] : bounds[2]].tolist():
            assert (end - first) % 16 == 0
            assert query_lo <= token_lo
            assert token_hi <= query_hi


def test_long_branches_get_tiles_of_their_own() -> None:
    nodes = [
        Node(parent=None, tokens=200, cached=True),
        Node(parent=0, tokens=5, cached=False),
        Node(parent=None, tokens=200, cached=True),
        Node(parent=2, tokens=5, cached=False),
    ]
    work = build(make(nodes), geometry())

    assert sorted(work.units[:, :2].tolist()) == [[0, 5], [5, 10]]


def test_few_tiles_are_split_into_even_shares_with_one_merge_each() -> None:
    work = build(make(prefix_with_rows(640, [3, 2])), geometry(target_units=8))

    assert work.num_partials == len(work.units) == 7
    assert sorted(work.units[:, 2].tolist()) == list(range(7))
    assert work.merges.tolist() == [[0, 5, 0, 7]]


def test_enough_tiles_are_not_split() -> None:
    work = build(make(prefix_with_rows(640, [8] * 12)), geometry(target_units=8))

    assert work.num_partials == 0
    assert set(work.units[:, 2].tolist()) == {-1}


def test_the_longest_unit_comes_first() -> None:
    work = build(make([*prefix_with_rows(0, [3]), Node(parent=None, tokens=300, cached=False)]), geometry())
    key_tiles = [
        sum(-(-(end - first) // 16) for first, end, *_ in work.items[bounds[0] : bounds[4]].tolist())
        for _, _, _, *bounds in work.units.tolist()
    ]

    assert key_tiles == sorted(key_tiles, reverse=True)
    assert key_tiles[0] > key_tiles[-1]


def test_a_window_drops_the_keys_that_no_row_of_the_tile_sees() -> None:
    work = build(make(prefix_with_rows(1000, [8])), geometry(window=32))
    first = min(int(first) for first, *_ in work.items[work.units[0, 3] : work.units[0, 7]].tolist())
    pool_keys = sum(
        int(work.items[i, 1] - work.items[i, 0])
        for segment in (Segment.POOL_BULK, Segment.POOL_MASKED)
        for i in range(work.units[0, 3 + segment], work.units[0, 4 + segment])
    )

    assert first >= 0
    assert pool_keys == 31
