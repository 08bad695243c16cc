from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.profiled import ProfiledKernels, attended_pairs
from kernels.api import AttentionShape, SpanTable
from kernels.reference import ReferenceKernels


def table(spans: list[tuple[int, int, int, int, int, bool, bool]], positions: list[int]) -> SpanTable:
    columns = np.array(spans, dtype=np.int32).T
    return SpanTable(
        positions=np.array(positions, dtype=np.int32),
        query_lo=columns[0],
        query_hi=columns[1],
        key_lo=columns[2],
        key_tokens=columns[3],
        key_position=columns[4],
        from_pool=columns[5].astype(np.bool_),
        causal=columns[6].astype(np.bool_),
        block_ids=np.array([0, 1], dtype=np.int32),
        block_size=4,
    )


# a cached prefix of 5, a fresh node of 2 behind it, and two tails of 2 and 1 behind that
TREE = table(
    [
        (0, 5, 0, 5, 0, True, False),
        (0, 2, 0, 2, 5, False, True),
        (2, 5, 0, 2, 5, False, False),
        (2, 4, 2, 2, 7, False, True),
        (4, 5, 4, 1, 7, False, True),
    ],
    [5, 6, 7, 8, 7],
)


def test_pairs_of_a_tree_are_each_row_s_position_and_one() -> None:
    assert attended_pairs(TREE) == 6 + 7 + 8 + 9 + 8


def test_causal_span_for_a_few_rows_counts_what_they_see() -> None:
    last_row_only = table([(0, 1, 0, 6, 0, False, True)], [5])

    assert attended_pairs(last_row_only) == 6


def test_results_are_those_of_the_wrapped_set_and_costs_are_counted() -> None:
    torch.manual_seed(0)
    plain, profiled = ReferenceKernels(), ProfiledKernels(ReferenceKernels())
    kernels = profiled.as_kernel_set()
    weight, x = torch.randn(12, 8), torch.randn(5, 8)
    query, key, value = torch.randn(5, 3, 16), torch.randn(5, 1, 16), torch.randn(5, 1, 16)
    pools = torch.randn(1, 8, 16), torch.randn(1, 8, 16)
    shape = AttentionShape(num_heads=3, num_kv_heads=1, head_dim=16, scale=0.25)

    linear = kernels.pack_linear(weight)(x)
    attended = kernels.attend(query, key, value, *pools, kernels.plan(TREE), shape)
    normed = kernels.rms_norm(x, torch.ones(8), 1e-5)
    costs = profiled.take_costs()

    torch.testing.assert_close(linear, plain.pack_linear(weight)(x), rtol=0, atol=0)
    wanted = plain.attend(query, key, value, *pools, plain.plan(TREE), shape)
    torch.testing.assert_close(attended, wanted, rtol=0, atol=0)
    torch.testing.assert_close(normed, plain.rms_norm(x, torch.ones(8), 1e-5), rtol=0, atol=0)
    assert costs["linear"].flop == 2 * 12 * 8 * 5
    assert costs["attend"].flop == 4 * 3 * 16 * 38
    assert {name: cost.calls for name, cost in costs.items()} == {"linear": 1, "attend": 1, "plan": 1, "rms_norm": 1}
    assert all(cost.seconds > 0 for cost in costs.values())


def test_large_products_are_also_counted_apart() -> None:
    profiled = ProfiledKernels(ReferenceKernels())
    linear = profiled.as_kernel_set().pack_linear(torch.randn(4, 2))
    linear(torch.randn(511, 2))
    linear(torch.randn(512, 2))

    costs = profiled.take_costs()

    assert costs["linear"].calls == 2
    assert costs["linear_large"].calls == 1
    assert costs["linear_large"].flop == 2 * 4 * 2 * 512


def test_costs_are_handed_out_once() -> None:
    profiled = ProfiledKernels(ReferenceKernels())
    profiled.as_kernel_set().swiglu(torch.randn(2, 4))

    assert set(profiled.take_costs()) == {"swiglu"}
    assert profiled.take_costs() == {}


def test_what_the_wrapped_set_does_not_have_is_missing() -> None:
    kernels = ProfiledKernels(ReferenceKernels())

    assert kernels.as_kernel_set().name == "reference"
    with pytest.raises(AttributeError, match="no_such_operation"):
        _ = kernels.no_such_operation
