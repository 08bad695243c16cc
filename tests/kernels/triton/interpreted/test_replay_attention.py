"""Attention over work lists in memory that holds one step after the other, as a recording does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.api import KernelInputError
from kernels.triton import TritonKernels
from kernels.triton.tuning import Launch
from tests.kernels.cases import Case, Node, make_case, prefix_with_rows, random_trie
from tests.kernels.contract import JUDGE, attend, close

QUERIES, BLOCK_SIZE, NUM_SLOTS = 40, 16, 4096
SMALL = Launch(tile_rows=16, tile_keys=16, num_warps=4, num_stages=1)


def step(nodes: list[Node], **changes: Any) -> Case:
    """A step of ``QUERIES`` rows: those of ``nodes``, and a row of its own from the rest."""
    fresh = sum(node.tokens for node in nodes if not node.cached)
    filled = [*nodes, Node(parent=None, tokens=QUERIES - fresh, cached=False)]
    shape = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "block_size": BLOCK_SIZE}
    return make_case(filled, **{**shape, **changes})


def many_branches() -> list[Node]:
    """More rows below long prefixes of their own than tiles of 8 tokens would need."""
    pairs = [[Node(parent=None, tokens=70, cached=True), Node(parent=2 * n, tokens=1, cached=False)] for n in range(9)]
    return [node for pair in pairs for node in pair]


STEPS: list[Callable[[], list[Node]]] = [
    lambda: prefix_with_rows(300, [20, 15]),
    lambda: prefix_with_rows(0, [1]),
    many_branches,
    lambda: prefix_with_rows(90, [3, 2]),
    lambda: random_trie(np.random.default_rng(5), num_nodes=5, max_tokens=6),
    lambda: prefix_with_rows(400, [30]),
    lambda: prefix_with_rows(17, [1, 1, 1]),
]


@pytest.mark.parametrize("split_below", [0, 4])
@pytest.mark.parametrize(
    "option", [{}, {"window": 60}, {"soft_cap": 0.8}, {"codes": torch.int8}, {"num_heads": 4, "num_kv_heads": 2}]
)
def test_each_step_is_attended_to_whatever_was_there_before(
    split_below: int, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = TritonKernels("cpu", choose=lambda _: SMALL, split_below=split_below)
    cases = [step(make(), seed=seed, **option) for seed, make in enumerate(STEPS)]
    layout = kernels.replay_layout(
        [cases[0].shape],
        torch.float32,
        quantised="codes" in option,
        num_queries=QUERIES,
        block_size=BLOCK_SIZE,
        num_slots=NUM_SLOTS,
    )
    memory = torch.full((layout.num_ints,), -(2**31), dtype=torch.int32)
    plan = layout.plan(memory)
    new_empty = Tensor.new_empty

    def unwritten(like: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = new_empty(like, *args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(Tensor, "new_empty", unwritten)
    for case in cases:
        into = np.full(layout.num_ints, 2**31 - 1, dtype=np.int32)
        used = layout.write(case.table, into)
        assert used is not None
        memory[:used] = torch.from_numpy(into[:used])
        found = kernels.attend(case.query, case.key, case.value, case.key_pool, case.value_pool, plan, case.shape)

        close(found, attend(JUDGE, case), torch.float32)


def layout_for(case: Case, **changes: int) -> Any:
    kernels = TritonKernels("cpu", choose=lambda _: SMALL, split_below=4)
    sizes = {"num_queries": QUERIES, "block_size": BLOCK_SIZE, "num_slots": NUM_SLOTS, **changes}
    return kernels.replay_layout([case.shape], torch.float32, quantised=False, **sizes)


def test_a_step_that_needs_more_tiles_or_blocks_than_there_is_room_for_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = step(many_branches())
    layout = layout_for(case)
    into = np.zeros(layout.num_ints, dtype=np.int32)
    assert layout.write(case.table, into) is not None
    for limit, room in (("_SPARE_TILES", 0), ("_ITEMS_PER_UNIT", 1), ("_MOST_BLOCK_IDS", 9)):
        with monkeypatch.context() as patch:
            patch.setattr(f"kernels.triton.replay.{limit}", room)
            small = layout_for(case)
            assert small.write(case.table, np.zeros(small.num_ints, dtype=np.int32)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_queries": 64}, "64 query rows wanted, got 40"),
        ({"block_size": 8}, "blocks of 8 slots wanted, got 16"),
        ({"num_slots": 32}, "blocks within 32 slots wanted"),
    ],
)
def test_a_step_that_is_not_of_the_layout_is_refused(changes: dict[str, int], message: str) -> None:
    case = step(prefix_with_rows(100, [3]))
    layout = layout_for(case, **changes)

    with pytest.raises(KernelInputError, match=message):
        layout.write(case.table, np.zeros(layout.num_ints, dtype=np.int32))
