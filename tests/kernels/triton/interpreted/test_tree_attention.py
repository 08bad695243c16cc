"""Attention over tile borders, splits and far memory; judged by the float32 set."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.api import KernelInputError
from kernels.triton import TritonKernels
from kernels.triton.tuning import Launch
from tests.kernels.cases import Case, Node, make_case, prefix_with_rows, random_trie
from tests.kernels.contract import JUDGE, TOLERANCE, attend, close

SMALL = Launch(tile_rows=16, tile_keys=16, num_warps=4, num_stages=1)


@triton.jit
def _product_kernel(left_ptr, right_ptr, product_ptr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(product_ptr + at, tl.dot(tl.load(left_ptr + at), tl.load(right_ptr + at), input_precision="ieee"))


def kernels(launch: Launch = SMALL, *, split_below: int = 0) -> TritonKernels:
    return TritonKernels("cpu", choose=lambda _: launch, split_below=split_below)


def check(case: Case, candidate: TritonKernels, dtype: torch.dtype = torch.float32) -> None:
    close(attend(candidate, case), attend(JUDGE, case), dtype)


def small(nodes: list[Node], **changes: Any) -> Case:
    return make_case(nodes, **{"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, **changes})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("split_below", [0, 64])
def test_random_tries_over_many_tiles(seed: int, split_below: int) -> None:
    rng = np.random.default_rng(seed)
    group = int(rng.choice([1, 3, 7]))
    nodes = random_trie(rng, num_nodes=6, max_tokens=30)
    check(small(nodes, num_heads=group, block_size=4, seed=seed), kernels(split_below=split_below))


@pytest.mark.parametrize("prefix_tokens", [0, 1, 15, 16, 17, 95])
@pytest.mark.parametrize("row_tokens", [[1], [15, 16, 17], [40, 1, 1]])
def test_prefix_and_suffix_lengths_around_a_tile(prefix_tokens: int, row_tokens: list[int]) -> None:
    check(small(prefix_with_rows(prefix_tokens, row_tokens)), kernels())


@pytest.mark.parametrize("split_below", [2, 5, 1000])
@pytest.mark.parametrize("option", ["plain", "window", "soft_cap", "two_heads"])
def test_split_tiles_merge_to_the_same_result(split_below: int, option: str) -> None:
    case = small(
        prefix_with_rows(300, [3, 2]),
        window=180 if option == "window" else None,
        soft_cap=0.8 if option == "soft_cap" else None,
        num_heads=4 if option == "two_heads" else 2,
        num_kv_heads=2 if option == "two_heads" else 1,
    )
    split = kernels(split_below=split_below)

    check(case, split)
    torch.testing.assert_close(attend(split, case), attend(kernels(), case), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 16, 31, 90])
def test_window_edges_fall_inside_tiles(window: int) -> None:
    nodes = [
        Node(parent=None, tokens=50, cached=True),
        Node(parent=0, tokens=40, cached=False),
        Node(parent=1, tokens=20, cached=False),
        Node(parent=1, tokens=3, cached=False),
    ]
    check(small(nodes, window=window), kernels())


def test_groups_of_many_prefixes_share_one_launch() -> None:
    nodes = [Node(parent=None, tokens=tokens, cached=True) for tokens in (70, 1, 33, 16)]
    nodes += [Node(parent=i % 4, tokens=1 + i % 5, cached=False) for i in range(14)]
    check(small(nodes), kernels())


def test_last_layer_rows_far_apart_share_a_tile() -> None:
    case = small(prefix_with_rows(20, [9] * 30), read_ratio=0.1)
    assert 0 < case.table.num_queries < 40

    check(case, kernels())


@pytest.mark.parametrize("head_dim", [80, 96])
def test_columns_beyond_the_head_size_are_neither_read_nor_written(head_dim: int) -> None:
    case = small(prefix_with_rows(40, [3, 20]), head_dim=head_dim)
    wide = torch.full((case.query.shape[0], 2, 128), float("nan"))
    wide[..., :head_dim] = case.query
    strided = dataclasses.replace(case, query=wide[..., :head_dim])

    check(strided, kernels(split_below=8))


def test_float16_agrees_within_its_tolerance() -> None:
    case = small(prefix_with_rows(100, [3, 20]), head_dim=64, dtype=torch.float16)
    got, wanted = attend(kernels(), case), attend(JUDGE, case)

    assert (got.float() - wanted.float()).abs().max() < TOLERANCE[torch.float16]


def test_packed_keys_may_be_views_of_a_fused_projection() -> None:
    case = small(prefix_with_rows(20, [9, 4]))
    fused = torch.cat([case.query, case.key, case.value], dim=1)
    views = dataclasses.replace(case, query=fused[:, :2], key=fused[:, 2:3], value=fused[:, 3:4])

    close(attend(kernels(), views), attend(JUDGE, case), torch.float32)


@pytest.mark.parametrize("far", ["slots", "kv_heads"])
def test_b027_pool_offsets_beyond_31_bits_reach_their_slots(far: str) -> None:
    """The last slots of a pool of more than 2**31 elements; untouched memory is never committed."""
    head_dim, block_size = 64, 16
    tokens = 40
    blocks = np.array([5, 2, 0], np.int32)
    if far == "slots":
        num_kv_heads, head_stride, num_slots = 1, 0, 2**31 // head_dim + 4096
        blocks = blocks + np.int32(num_slots // block_size - 8)
    else:
        num_kv_heads, head_stride, num_slots = 2, 2**31 + 64, 4096
    # an offset that wraps around reaches the memory before the pool and not an address of nobody
    store = torch.empty(2**31 + head_stride + num_slots * head_dim, dtype=torch.float16)
    pool = store.as_strided((num_kv_heads, num_slots, head_dim), (head_stride, head_dim, 1), storage_offset=2**31)
    case = make_case(
        prefix_with_rows(tokens, [3]),
        num_heads=num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.float16,
    )
    key_lo = int(case.table.key_lo[case.table.from_pool][0])
    slots = [int(blocks[i // block_size]) * block_size + i % block_size for i in range(key_lo, key_lo + tokens)]
    near = [
        int(case.table.block_ids[i // block_size]) * block_size + i % block_size for i in range(key_lo, key_lo + tokens)
    ]
    assert isinstance(case.key_pool, torch.Tensor)
    pool[:, slots] = case.key_pool[:, near]
    moved = dataclasses.replace(
        case,
        table=dataclasses.replace(case.table, block_ids=blocks[: len(case.table.block_ids)]),
        key_pool=pool,
        value_pool=pool,
    )
    judged = dataclasses.replace(case, value_pool=case.key_pool)

    close(attend(kernels(), moved), attend(JUDGE, judged), torch.float16)


def test_b030_bfloat16_is_refused_by_the_interpreter() -> None:
    case = small(prefix_with_rows(3, [2]), dtype=torch.bfloat16)

    with pytest.raises(KernelInputError, match=r"query: one of .*float16.*float32.* wanted, got torch\.bfloat16"):
        attend(kernels(), case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_b030_the_interpreter_multiplies_what_we_test_with_exactly(dtype: torch.dtype) -> None:
    """Integer matrices have exact products; a dtype that the interpreter gets wrong shows here."""
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.randint(-4, 5, (16, 16), generator=rng).to(dtype) for _ in range(2))
    product = torch.empty(16, 16)
    _product_kernel[(1,)](left, right, product)

    assert torch.equal(product, left.float() @ right.float())


def test_a_layout_that_kernels_cannot_read_is_refused() -> None:
    case = small(prefix_with_rows(3, [2]))
    columns = case.query.transpose(1, 2).contiguous().transpose(1, 2)

    with pytest.raises(KernelInputError, match=r"query: a dense last axis wanted, got strides \[32, 1, 2\]"):
        attend(kernels(), dataclasses.replace(case, query=columns))
