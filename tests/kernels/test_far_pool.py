"""Pools of more than 2**31 elements on a CPU; memory that nobody touches is never committed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kernels.cpu import CpuKernels
from kernels.native import load_native_ops
from tests.kernels.cases import make_case, prefix_with_rows
from tests.kernels.contract import JUDGE, attend, close

BLOCK_SIZE, HEAD_DIM, TOKENS = 16, 64, 40
FIRST_FAR_SLOT = 2**31 // HEAD_DIM
NATIVE = load_native_ops()
SETS = [pytest.param(CpuKernels(), id="torch")]
if NATIVE is not None:
    SETS.append(pytest.param(CpuKernels(NATIVE), id="native"))


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("first_block", [FIRST_FAR_SLOT // BLOCK_SIZE - 1, FIRST_FAR_SLOT // BLOCK_SIZE + 200])
def test_b027_slots_around_and_beyond_31_bits_are_written_and_read(kernels: CpuKernels, first_block: int) -> None:
    """An offset that wraps around would reach the memory before the pool."""
    num_slots = FIRST_FAR_SLOT + 4096
    store = torch.empty(2**31 + num_slots * HEAD_DIM, dtype=torch.bfloat16)
    pool = store[2**31 :].view(1, num_slots, HEAD_DIM)
    case = make_case(
        prefix_with_rows(TOKENS, [3]),
        num_heads=1,
        num_kv_heads=1,
        head_dim=HEAD_DIM,
        block_size=BLOCK_SIZE,
        dtype=torch.bfloat16,
    )
    assert isinstance(case.key_pool, torch.Tensor)
    blocks = first_block + np.random.default_rng(0).permutation(len(case.table.block_ids)).astype(np.int32)
    key_lo = int(case.table.key_lo[case.table.from_pool][0])
    along = np.arange(key_lo, key_lo + TOKENS)
    near, far = (
        torch.from_numpy(ids[along // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + along % BLOCK_SIZE)
        for ids in (case.table.block_ids, blocks)
    )
    kept = case.key_pool[0, near].unsqueeze(1)

    kernels.store_kv(kept, kept, pool, pool, torch.arange(TOKENS), far)
    plan = kernels.plan(dataclasses.replace(case.table, block_ids=blocks))
    got = kernels.attend(case.query, case.key, case.value, pool, pool, plan, case.shape)

    assert torch.equal(pool[0, far], kept[:, 0])
    close(got, attend(JUDGE, dataclasses.replace(case, value_pool=case.key_pool)), torch.bfloat16)
