"""The attention in C beyond the contract: long runs, many rows, a row that is not a number, planted bugs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cpu import CpuKernels
from kernels.native import load_native_ops, ops
from tests.kernels.cases import make_case, prefix_with_rows
from tests.kernels.contract import JUDGE, attend, close
from tests.kernels.libraries import BASE_SOURCES, build_broken

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


@pytest.mark.parametrize("names", [("query", "key", "value"), ("query",), ("value",)], ids="+".join)
def test_row_that_is_not_a_number_shows_it_and_stays_alone(names: tuple[str, ...]) -> None:
    """Neighbours share its matrix tiles and none of its keys."""
    case = make_case(prefix_with_rows(40, [5, 9, 3]), num_heads=6, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    sick = slice(5, 14) if case.table.positions[5] == 40 else slice(45, 54)
    clean = attend(CpuKernels(NATIVE), case)
    changed = {name: getattr(case, name).clone() for name in names}
    for tensor in changed.values():
        tensor[sick] = torch.nan

    got = attend(CpuKernels(NATIVE), dataclasses.replace(case, **changed))

    assert got[sick].isnan().all()
    others = torch.ones(len(got), dtype=torch.bool)
    others[sick] = False
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize(
    ("name", "sound", "broken"),
    [
        ("attention.c", "least(before + 1, run->tokens)", "run->tokens"),
        ("attention.c", "if (inside == a->block_size) block++, inside = 0;", ""),
        ("attention.c", "head * group + r % group) * dim;\n        memcpy", "head + r % group) * dim;\n        memcpy"),
        ("softmax.h", "if (!(new <= old)) rescale(sum,", "if (old <= NOTHING) rescale(sum,"),
        ("softmax.h", "if (!(new <= old)) rescale(to,", "if (old <= NOTHING) rescale(to,"),
        ("attention.c", "from++, done = 0;", "done = 0;"),
        ("attention.c", "int64_t share = j->share_lo;", "int64_t share = j->share_lo + 1;"),
        ("attention.c", "run->position / STRETCH == stretch", "1"),
        ("panels.h", "_mm512_cvtepu16_epi32(odd)", "_mm512_cvtepu16_epi32(even)"),
        ("attention_work.c", "t->key_lo[m] + t->key_tokens[m] - keys", "t->key_lo[m]"),
        (
            "attention_work.c",
            "add_unit(w, run, head, first, next,",
            "add_unit(w, run, head, first, next - (first > low),",
        ),
        ("attention_work.c", "(join){any->head,", "(join){0,"),
    ],
)
def test_library_with_a_planted_bug_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sound: str, broken: str
) -> None:
    """Drop the causal mask, run past the end of a block, mix up heads, leave old sums as they are within a stretch
    and after it, read a piece twice, lose a share, sum over stretches at once, take a value twice; complete a tile
    with the first keys of the span before, lose the last item of a share, join all shares as those of one head."""
    sources = (*BASE_SOURCES, "attention_work.c", "attention.c")
    library = build_broken(tmp_path, monkeypatch, sources, name, sound, broken)
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
    work = dataclasses.replace(
        NATIVE.attention.cut(case.table, group=2, kv_heads=1, num_threads=1), unit_tokens=1 << 40
    )

    with pytest.raises(MemoryError, match="no memory for the workspace"):
        NATIVE.attention(case.query, case.key, case.value, case.key_pool, case.value_pool, work, case.shape)
