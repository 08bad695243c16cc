"""The attention in C beyond the contract: long runs, many rows, a row that is not a number, planted bugs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.cpu import CpuKernels
from kernels.native import build, cut, load_native_ops, ops
from tests.kernels.cases import make_case, prefix_with_rows, random_trie
from tests.kernels.contract import JUDGE, attend, close

NATIVE = load_native_ops()
pytestmark = pytest.mark.skipif(
    NATIVE is None or NATIVE.attention is None, reason="no AVX512-BF16 or no C compiler here"
)


@pytest.mark.parametrize("prefix", [512, 531])
@pytest.mark.parametrize("rows", [[200], [24] * 20, [1] * 33])
@pytest.mark.parametrize("option", [{}, {"window": 100}, {"soft_cap": 2.0}, {"read_ratio": 0.1}])
def test_long_runs_and_many_rows(prefix: int, rows: list[int], option: dict[str, Any]) -> None:
    case = make_case(
        prefix_with_rows(prefix, rows), num_heads=6, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, **option
    )

    close(attend(CpuKernels(NATIVE), case), attend(JUDGE, case), torch.bfloat16)


def test_row_that_is_not_a_number_stays_alone() -> None:
    """Neighbours share its matrix tiles and none of its keys."""
    case = make_case(prefix_with_rows(40, [5, 9, 3]), num_heads=6, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    sick = slice(5, 14) if case.table.positions[5] == 40 else slice(45, 54)
    clean = attend(CpuKernels(NATIVE), case)
    query, key, value = case.query.clone(), case.key.clone(), case.value.clone()
    for tensor in (query, key, value):
        tensor[sick] = torch.nan

    got = attend(CpuKernels(NATIVE), dataclasses.replace(case, query=query, key=key, value=value))

    assert got[sick].isnan().all()
    others = torch.ones(len(got), dtype=torch.bool)
    others[sick] = False
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_threads", [1, 16])
def test_units_hold_every_query_of_every_span_once(seed: int, num_threads: int) -> None:
    nodes = random_trie(np.random.default_rng(seed), num_nodes=12, max_tokens=80)
    table = make_case(nodes, num_heads=9, num_kv_heads=3, head_dim=64, read_ratio=0.5).table

    work = cut(table, group=3, kv_heads=3, num_threads=num_threads)

    seen = sorted(
        (query, *item[2:])
        for low, high, first, end in work.units.tolist()
        for item in work.items[first:end].tolist()
        for query in range(item[0], item[1])
        if low <= query < high
    )
    columns = (table.key_lo, table.key_tokens, table.key_position, table.from_pool, table.causal)
    wanted = sorted(
        (query, *(int(column[span]) for column in columns))
        for span in range(table.num_spans)
        for query in range(table.query_lo[span], table.query_hi[span])
    )
    assert seen == wanted
    assert sorted(query for low, high, *_ in work.units.tolist() for query in range(low, high)) == list(
        range(table.num_queries)
    )
    assert (work.units[:, 1] - work.units[:, 0]).max() <= work.unit_tokens


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("least_of(before + 1, keys)", "keys"),
        ("if (inside == a->block_size) block++, inside = 0;", ""),
        ("head * group + r % group) * dim;\n        memcpy", "head + r % group) * dim;\n        memcpy"),
        ("*weight *= keep;", ""),
    ],
)
def test_library_with_a_planted_bug_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: str, broken: str
) -> None:
    """Drop the causal mask, run past the end of a block, mix up heads, count old weights twice."""
    source = build.SOURCES[1].read_text()
    assert source.count(sound) >= 1
    wrong = tmp_path / "attention.c"
    wrong.write_text(source.replace(sound, broken))
    monkeypatch.setattr(build, "SOURCES", (build.SOURCES[0], wrong))
    compiler = build.find_compiler()
    assert compiler is not None
    library = build.build_library(tmp_path, build.processor_levels()[0], compiler)
    monkeypatch.setattr(ops, "find_library", lambda: library)

    loaded = load_native_ops()

    assert loaded is not None
    assert loaded.attention is None


def test_without_memory_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NATIVE is not None
    assert NATIVE.attention is not None
    case = make_case(prefix_with_rows(4, [2]), num_heads=2, num_kv_heads=1, head_dim=64, dtype=torch.bfloat16)
    assert isinstance(case.key_pool, Tensor)
    assert isinstance(case.value_pool, Tensor)
    work = dataclasses.replace(cut(case.table, group=2, kv_heads=1, num_threads=1), unit_tokens=1 << 40)

    with pytest.raises(MemoryError, match="no memory for the workspace"):
        NATIVE.attention(case.query, case.key, case.value, case.key_pool, case.value_pool, work, case.shape)
