from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.batch import PaddedBatch, StepLayout, lay_out, on_device
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.config import EngineConfig
from engine.device import pool_dtype
from engine.kv_pool import KvPool
from engine.model import Decoder
from engine.padding import padded, padded_spans
from engine.prefix_cache import PrefixCache
from engine.records import Row
from engine.scheduler import Scheduler
from kernels.api import KernelSet
from kernels.checks import check_span_table
from kernels.cpu import CpuKernels
from kernels.reference import ReferenceKernels
from tests.helpers.families import tiny_model
from tests.helpers.paper_engine import make_task
from tests.helpers.tiny import tiny_checkpoint, tiny_config
from tests.helpers.tries import make_row
from tests.kernels.cases import make_table, random_trie

BLOCK_SIZE, NUM_BLOCKS, SIZE = 4, 64, 48
SPARE_SLOT = NUM_BLOCKS * BLOCK_SIZE - 1
CPU = torch.device("cpu")


def steps(checkpoint: Checkpoint) -> list[StepLayout]:
    """A document, rows below it, a row elsewhere: each finds what the ones before have kept."""
    cache = PrefixCache(num_blocks=NUM_BLOCKS - 1, block_size=BLOCK_SIZE)
    scheduler = Scheduler(cache, step_tokens=SIZE)
    rng = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in rng.integers(checkpoint.config.vocab_size, size=count)]

    document = tokens(21)
    tasks: list[Sequence[Row]] = [
        [make_row(document, keep=21)],
        [make_row([*document, *tokens(length)], keep=23) for length in (3, 9, 5)],
        [make_row([*document, *tokens(9)], target=3, keep=0)],
        [make_row(tokens(2), keep=0)],
    ]
    layouts = []
    for rows in tasks:
        task = make_task(rows)
        scheduler.add(task)
        step = scheduler.next_step()
        assert step is not None
        layouts.append(lay_out(step, BLOCK_SIZE))
        scheduler.finish(step, commit=True)
        scheduler.remove(task)
    return layouts


def run_padded(layout: StepLayout, decoder: Decoder, kernels: KernelSet, pool: KvPool) -> Tensor:
    whole = padded(layout, SIZE, spare_slot=SPARE_SLOT)
    batch = PaddedBatch(
        tokens=torch.from_numpy(whole.tokens),
        positions=torch.from_numpy(whole.spans.positions.astype(np.int64)),
        read_rows=torch.from_numpy(whole.read_rows),
        keep_rows=torch.from_numpy(whole.keep_rows),
        keep_slots=torch.from_numpy(whole.keep_slots),
        plan=kernels.plan(whole.spans),
    )
    return decoder.forward_padded(batch, pool)[: len(layout.read_rows)]


def checkpoint_of(family: str | None, folder: Path) -> Checkpoint:
    if family is None:
        return tiny_checkpoint(tiny_config())
    tiny_model(family).save_pretrained(folder)
    return load_checkpoint(folder, torch.float32)


@pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])
@pytest.mark.parametrize(
    ("family", "kv_dtype"), [(None, "auto"), (None, "int8"), ("qwen3", "auto"), ("gemma2", "fp8"), ("gemma3", "auto")]
)
def test_a_padded_step_gives_what_the_step_gives_and_keeps_what_it_keeps(
    kernels: KernelSet, family: str | None, kv_dtype: Literal["auto", "int8", "fp8"], tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(family, tmp_path)
    decoder = Decoder(checkpoint.config, checkpoint.weights, kernels)
    dtype = pool_dtype(EngineConfig(dtype="float32", kv_dtype=kv_dtype))
    pools = [
        KvPool(checkpoint.config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=dtype, device=CPU)
        for _ in range(2)
    ]
    for pool in pools:
        for numbers in pool.scales or (pool.keys, pool.values):
            numbers.fill_(torch.nan)
    tolerance = 1e-4 if kv_dtype == "auto" else 0.05  # a number that is rounded the other way in 8 bits
    for layout in steps(checkpoint):
        launched = decoder.forward(on_device(layout, CPU), pools[0])
        found = run_padded(layout, decoder, kernels, pools[1])

        torch.testing.assert_close(found, launched, atol=tolerance, rtol=1e-4)
        for one, other in zip(*((pool.scales or (pool.keys, pool.values)) for pool in pools), strict=True):
            written, expected = (~numbers[:, :, :SPARE_SLOT].isnan() for numbers in (other, one))
            assert torch.equal(written, expected)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("added", [0, 1, 30])
def test_rows_that_are_added_see_themselves_alone_and_nobody_sees_them(seed: int, added: int) -> None:
    rng = np.random.default_rng(seed)
    table, num_fresh, num_blocks = make_table(
        random_trie(rng, num_nodes=5, max_tokens=9), block_size=BLOCK_SIZE, rng=rng
    )
    whole = padded_spans(table, num_fresh + added)
    check_span_table(whole, num_fresh=num_fresh + added, num_slots=num_blocks * BLOCK_SIZE)

    before, after = (ReferenceKernels().plan(spans) for spans in (table, whole))
    assert np.array_equal(after.visible[:num_fresh, : before.visible.shape[1]], before.visible)
    assert after.visible[:num_fresh].sum() == before.visible.sum()
    own = [sorted(after.source[after.visible[row]].tolist()) for row in range(num_fresh, num_fresh + added)]
    assert own == [list(range(num_fresh, row + 1)) for row in range(num_fresh, num_fresh + added)]
    assert not after.from_pool[after.visible[num_fresh:].any(axis=0)].any()


def test_what_is_left_over_is_kept_where_nobody_looks() -> None:
    layout = steps(tiny_checkpoint(tiny_config()))[0]
    kept = len(layout.keep_rows)

    whole = padded(layout, SIZE, spare_slot=SPARE_SLOT)

    assert kept == 21
    assert whole.keep_slots[:kept].tolist() == layout.keep_slots.tolist()
    assert set(whole.keep_slots[kept:].tolist()) == {SPARE_SLOT}
    assert {len(column) for column in (whole.tokens, whole.read_rows, whole.keep_rows, whole.keep_slots)} == {SIZE}
