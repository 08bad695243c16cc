"""The judge itself: against PyTorch's attention on plain cases, and one token at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from kernels.api import QuantisedPool
from kernels.reference import ReferenceKernels
from tests.kernels.cases import Case, Node, make_case, prefix_with_rows, random_trie

KERNELS = ReferenceKernels()


def attend(case: Case) -> Tensor:
    plan = KERNELS.plan(case.table)
    return KERNELS.attend(case.query, case.key, case.value, case.key_pool, case.value_pool, plan, case.shape)


def plain_pools(case: Case) -> tuple[Tensor, Tensor]:
    """Keys and values as numbers, whatever the pools hold."""
    keys, values = (
        pool.codes.float() * pool.scales[..., None] if isinstance(pool, QuantisedPool) else pool
        for pool in (case.key_pool, case.value_pool)
    )
    return keys, values


def attend_by_token(case: Case) -> Tensor:
    """A loop over queries, heads and spans in float64 Python arithmetic."""
    table, shape = case.table, case.shape
    key_pool, value_pool = plain_pools(case)
    group = shape.num_heads // shape.num_kv_heads
    out = torch.zeros(table.num_queries, shape.num_heads, shape.head_dim, dtype=torch.float64)
    for row in range(table.num_queries):
        for head in range(shape.num_heads):
            scores, values = [], []
            for m in range(table.num_spans):
                if not table.query_lo[m] <= row < table.query_hi[m]:
                    continue
                for j in range(table.key_tokens[m]):
                    distance = int(table.positions[row]) - int(table.key_position[m]) - j
                    if (table.causal[m] and distance < 0) or (shape.window and distance >= shape.window):
                        continue
                    at = int(table.key_lo[m]) + j
                    if table.from_pool[m]:
                        slot = table.block_ids[at // table.block_size] * table.block_size + at % table.block_size
                        key, value = key_pool[head // group, slot], value_pool[head // group, slot]
                    else:
                        key, value = case.key[at, head // group], case.value[at, head // group]
                    score = float(case.query[row, head].double() @ key.double()) * shape.scale
                    scores.append(shape.soft_cap * math.tanh(score / shape.soft_cap) if shape.soft_cap else score)
                    values.append(value.double())
            if scores:
                out[row, head] = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0) @ torch.stack(values)
    return out


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("option", ["plain", "window", "soft_cap", "last_layer", "int8", "float8_e4m3fn"])
def test_agrees_with_a_loop_over_tokens_on_random_tries(seed: int, option: str) -> None:
    rng = np.random.default_rng(seed)
    case = make_case(
        random_trie(rng, num_nodes=7, max_tokens=9),
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        block_size=4,
        window=5 if option == "window" else None,
        soft_cap=0.7 if option == "soft_cap" else None,
        read_ratio=0.3 if option == "last_layer" else None,
        codes=getattr(torch, option) if option in {"int8", "float8_e4m3fn"} else None,
        seed=seed,
    )

    torch.testing.assert_close(attend(case).double(), attend_by_token(case), atol=1e-6, rtol=1e-5)


def test_one_fresh_row_is_causal_attention() -> None:
    case = make_case(prefix_with_rows(0, [37]), num_heads=6, num_kv_heads=2, head_dim=16)

    wanted = scaled_dot_product_attention(
        case.query.transpose(0, 1)[None],
        case.key.transpose(0, 1)[None],
        case.value.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0].transpose(0, 1)

    torch.testing.assert_close(attend(case), wanted, atol=1e-6, rtol=1e-5)


def test_a_branched_trie_equals_each_row_alone() -> None:
    nodes = [
        Node(parent=None, tokens=5, cached=False),
        Node(parent=0, tokens=3, cached=False),
        Node(parent=0, tokens=4, cached=False),
        Node(parent=2, tokens=1, cached=False),
    ]
    case = make_case(nodes, num_heads=2, num_kv_heads=1, head_dim=8)
    out = attend(case)

    for rows in ([*range(8)], [*range(5), *range(8, 13)]):  # root + first child; root + second + its child
        alone = scaled_dot_product_attention(
            case.query[rows].transpose(0, 1),
            case.key[rows].transpose(0, 1),
            case.value[rows].transpose(0, 1),
            is_causal=True,
            enable_gqa=True,
        ).transpose(0, 1)
        torch.testing.assert_close(out[rows], alone, atol=1e-6, rtol=1e-5)


def test_a_row_whose_window_hides_every_key_is_zero() -> None:
    case = make_case(prefix_with_rows(6, [1]), num_heads=2, num_kv_heads=1, head_dim=8, window=1)
    table = case.table
    prefix_only = table.from_pool
    plan = KERNELS.plan(table)
    plan.visible[:, ~prefix_only[np.repeat(np.arange(table.num_spans), table.key_tokens)]] = False
    out = KERNELS.attend(case.query, case.key, case.value, case.key_pool, case.value_pool, plan, case.shape)

    assert torch.equal(out, torch.zeros_like(out))


def test_gates_are_those_of_pytorch() -> None:
    gate_up = torch.randn(5, 20, generator=torch.Generator().manual_seed(0)) * 3
    gate, up = gate_up.chunk(2, dim=-1)

    torch.testing.assert_close(KERNELS.swiglu(gate_up), silu(gate) * up)
    torch.testing.assert_close(KERNELS.geglu(gate_up), gelu(gate, approximate="tanh") * up)
