from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import torch

from engine.errors import DeviceError
from engine.kv_pool import KvPool
from engine.model import Decoder
from engine.warm_up import warm_up
from kernels.api import AttentionShape, KernelInputError, SpanTable, StepSize
from kernels.checks import check_span_table
from kernels.cpu import CpuKernels
from kernels.reference import ReferenceKernels, ReferencePlan
from tests.helpers.tiny import tiny_checkpoint, tiny_config

BLOCK_SIZE, NUM_BLOCKS = 4, 16
CONFIG = tiny_config(max_positions=1000)


class Listed(ReferenceKernels):
    """Lists steps as a set that compiles does, and remembers what it was asked."""

    def __init__(self, sizes: Sequence[StepSize]) -> None:
        self.sizes = sizes
        self.max_keys = 0
        self.planned: list[SpanTable] = []
        self.read: list[tuple[str, int]] = []

    def warm_up(
        self, shape: AttentionShape, dtype: torch.dtype, *, quantised: bool, max_keys: int
    ) -> tuple[StepSize, ...]:
        self.max_keys = max_keys
        return tuple(self.sizes)

    def plan(self, table: SpanTable) -> ReferencePlan:
        self.planned.append(table)
        return super().plan(table)

    def label_logits(
        self, hidden: torch.Tensor, head: torch.Tensor, label_ids: torch.Tensor, soft_cap: float | None = None
    ) -> torch.Tensor:
        self.read.append(("labels", len(hidden)))
        return super().label_logits(hidden, head, label_ids, soft_cap)

    def log_sum_exp(self, hidden: torch.Tensor, head: torch.Tensor, soft_cap: float | None = None) -> torch.Tensor:
        self.read.append(("denominators", len(hidden)))
        return super().log_sum_exp(hidden, head, soft_cap)


def run(kernels: ReferenceKernels | CpuKernels, *, largest_step: int | None = None) -> tuple[float, KvPool]:
    decoder = Decoder(CONFIG, tiny_checkpoint(CONFIG).weights, kernels)
    pool = KvPool(CONFIG, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32, device=torch.device("cpu"))
    pool.keys.fill_(torch.nan)
    return warm_up(decoder, pool, kernels, block_size=BLOCK_SIZE, largest_step=largest_step), pool


def test_a_set_that_compiles_nothing_runs_nothing() -> None:
    seconds, pool = run(CpuKernels())

    assert seconds == 0
    assert pool.keys.isnan().all()


def test_each_size_is_a_sound_step_of_all_layers_and_readouts(caplog: pytest.LogCaptureFixture) -> None:
    kernels = Listed([StepSize(queries=1, keys=0), StepSize(queries=5, keys=1), StepSize(queries=3, keys=63)])
    with caplog.at_level(logging.INFO):
        seconds, pool = run(kernels)

    assert seconds > 0
    assert kernels.max_keys == NUM_BLOCKS * BLOCK_SIZE
    assert [len(table.positions) for table in kernels.planned] == [1, 1, 5, 5, 3, 3]
    assert [int(table.key_tokens.max()) for table in kernels.planned[::2]] == [1, 1, 63]
    for table in kernels.planned:
        check_span_table(table, num_fresh=table.num_queries, num_slots=NUM_BLOCKS * BLOCK_SIZE)
    assert kernels.read == [(kind, rows) for rows in (1, 5, 3) for kind in ("labels", "denominators")]
    assert pool.keys[:, :, 1:].isnan().all()
    assert not pool.keys[:, :, 0].isnan().all()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "warm-up step 1 of 3 (1 rows, 0 keys)",
        "warm-up step 2 of 3 (5 rows, 1 keys)",
        "warm-up step 3 of 3 (3 rows, 63 keys)",
    ]


def test_the_largest_step_is_tried_last() -> None:
    kernels = Listed([StepSize(queries=2, keys=3)])
    run(kernels, largest_step=50)

    assert [table.num_queries for table in kernels.planned] == [2, 2, 50, 50]


def test_a_step_without_room_is_refused_with_its_size_and_that_of_the_pool() -> None:
    class Full(Listed):
        def log_sum_exp(self, hidden: torch.Tensor, head: torch.Tensor, soft_cap: float | None = None) -> torch.Tensor:
            raise torch.OutOfMemoryError

    pool_bytes = NUM_BLOCKS * BLOCK_SIZE * 2 * 2 * 16 * 4
    with pytest.raises(DeviceError, match=f"a step of 50 tokens has no room .* a pool of {pool_bytes} bytes; lower"):
        run(Full([]), largest_step=50)


def test_a_model_that_the_kernels_do_not_take_is_refused_with_their_words() -> None:
    class Narrow(Listed):
        def warm_up(
            self, shape: AttentionShape, dtype: torch.dtype, *, quantised: bool, max_keys: int
        ) -> tuple[StepSize, ...]:
            raise KernelInputError(f"no launch for head size {shape.head_dim}")

    with pytest.raises(DeviceError, match="kernels 'reference' cannot run this model: no launch for head size 16"):
        run(Narrow([]))
