from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kernels.api import SpanTable
from kernels.spans import previous_spans
from tests.kernels.cases import make_table, random_trie


def test_previous_span_ends_where_a_span_begins_and_holds_its_rows() -> None:
    """A cached prefix of 5, a fresh node of 2 behind it, two tails of 2 and 1 behind that, a row of its own."""
    columns = np.array(
        [
            (0, 5, 0, 5, 0),
            (0, 2, 0, 2, 5),
            (2, 5, 0, 2, 5),
            (2, 4, 2, 2, 7),
            (4, 5, 4, 1, 7),
            (5, 12, 5, 7, 0),
        ],
        np.int32,
    ).T
    table = SpanTable(
        positions=np.array([5, 6, 7, 8, 7, *range(7)], np.int32),
        query_lo=columns[0],
        query_hi=columns[1],
        key_lo=columns[2],
        key_tokens=columns[3],
        key_position=columns[4],
        from_pool=np.array([True, False, False, False, False, False]),
        causal=np.array([False, True, False, True, True, True]),
        block_ids=np.array([0], np.int32),
        block_size=16,
    )

    assert previous_spans(table).tolist() == [-1, 0, 0, 2, 2, -1]
    assert previous_spans(dataclasses.replace(table, query_lo=table.query_hi)).tolist() == [-1] * 6


@pytest.mark.parametrize("seed", range(10))
def test_every_row_comes_from_its_own_node_back_to_position_0(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, _, _ = make_table(random_trie(rng, num_nodes=12, max_tokens=40), block_size=16, rng=rng)
    previous = previous_spans(table)

    for row in range(table.num_queries):
        wanted = {m for m in range(table.num_spans) if table.query_lo[m] <= row < table.query_hi[m]}
        (span,) = (m for m in wanted if table.causal[m])
        seen = {span}
        while (span := int(previous[span])) >= 0:
            seen.add(span)
        assert seen == wanted
