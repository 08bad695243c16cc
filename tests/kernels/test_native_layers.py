"""Layers that run as one operation give the bits that their own operations give, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from kernels.api import KernelInputError, LastLayerOps, LayerOps, LayersInput
from kernels.cpu import CpuKernels
from kernels.native import load_native_ops
from kernels.reference import ReferenceKernels
from tests.kernels.cases import Case, coded_weight, keep_queries, make_case, prefix_with_rows

NATIVE = load_native_ops()
pytestmark = pytest.mark.skipif(NATIVE is None or NATIVE.linear is None, reason="no AMX or no C compiler here")

HEADS, KV_HEADS, DIM, HIDDEN, INNER, LAYERS = 6, 2, 32, 160, 96, 3


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(NATIVE)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def half(*shape: int, seed: int) -> Tensor:
    return random(*shape, seed=seed).div_(shape[-1] ** 0.5).bfloat16()


def packed(
    kernels: CpuKernels | ReferenceKernels, case: Case, number: int, *, int8: bool = False, coded: bool = False
) -> LayerOps:
    """A layer with a bias, one weight in codes or all, and every second time a window and other angles."""
    width, attended = (HEADS + 2 * KV_HEADS) * DIM, HEADS * DIM
    qkv = coded_weight(width, HIDDEN, bits=8) if coded else half(width, HIDDEN, seed=number)
    norm = random(HIDDEN, seed=number).abs()
    return LayerOps(
        qkv=kernels.pack_normed_linear(norm, 1e-5, qkv, half(width, seed=number + 1)),
        attention_out=kernels.pack_linear(half(HIDDEN, attended, seed=number + 2)),
        feed_forward=kernels.pack_feed_forward(
            norm,
            1e-5,
            coded_weight(2 * INNER, HIDDEN, bits=4),
            half(HIDDEN, INNER, seed=number + 3),
            "silu",
            int8=int8,
        ),
        shape=replace(case.shape, window=20 if number % 2 else None),
        turn=number % 2,
    )


def packed_last(kernels: CpuKernels | ReferenceKernels, case: Case, *, int8: bool = False) -> LastLayerOps:
    layer = packed(kernels, case, 5, int8=int8)
    norm, query = random(HIDDEN, seed=30).abs(), HEADS * DIM
    return LastLayerOps(
        query=kernels.pack_normed_linear(norm, 1e-5, half(query, HIDDEN, seed=31)),
        key_value=kernels.pack_normed_linear(norm, 1e-5, coded_weight(2 * KV_HEADS * DIM, HIDDEN, bits=4)),
        attention_out=layer.attention_out,
        feed_forward=layer.feed_forward,
        norm=random(HIDDEN, seed=32).bfloat16(),
        eps=1e-5,
        shape=layer.shape,
        turn=layer.turn,
    )


def step_of(case: Case, kernels: CpuKernels, read: int = 2, layers: int = LAYERS) -> LayersInput:
    """``read`` rows are read, the last among them."""
    rows = case.table.num_queries
    assert isinstance(case.key_pool, Tensor)
    assert isinstance(case.value_pool, Tensor)
    free = np.setdiff1d(np.arange(case.key_pool.shape[1]), _named_slots(case))
    kept = torch.arange(0, rows, 2)[: len(free)]
    angles = [random(rows, DIM // 2, seed=kind) for kind in (20, 21)]
    read_rows = np.unique(np.linspace(rows - 1, 0, read, dtype=np.int64))
    return LayersInput(
        stream=torch.zeros(rows, HIDDEN),
        update=random(rows, HIDDEN, seed=7).bfloat16(),
        turns=[(each.cos(), each.sin()) for each in angles],
        key_pools=torch.stack([case.key_pool * scale for scale in (1, 2, -1, 4)[: layers + 1]]),
        value_pools=torch.stack([case.value_pool * scale for scale in (1, 0.5, 3, -2)[: layers + 1]]),
        keep_rows=kept,
        keep_slots=torch.from_numpy(free[: len(kept)]),
        read_rows=torch.from_numpy(read_rows),
        plan=kernels.plan(case.table),
        read_plan=kernels.plan(keep_queries(case.table, read_rows.astype(np.int32))),
    )


def _named_slots(case: Case) -> npt.NDArray[np.int64]:
    blocks = case.table.block_ids.astype(np.int64)
    return (blocks[:, None] * case.table.block_size + np.arange(case.table.block_size)).ravel()


def one_by_one(kernels: CpuKernels, layers: list[LayerOps], last: LastLayerOps, step: LayersInput) -> Tensor:
    update = step.update
    for number, layer in enumerate(layers):
        heads = layer.qkv(step.stream, update).view(-1, HEADS + 2 * KV_HEADS, DIM)
        turned = kernels.rotate(heads[:, : HEADS + KV_HEADS].contiguous(), *step.turns[layer.turn])
        query, key, value = turned[:, :HEADS], turned[:, HEADS:], heads[:, HEADS + KV_HEADS :]
        pools = step.key_pools[number], step.value_pools[number]
        kernels.store_kv(key, value, *pools, step.keep_rows, step.keep_slots)
        attended = kernels.attend(query, key, value, *pools, step.plan, layer.shape).flatten(1)
        update = layer.feed_forward(step.stream, layer.attention_out(attended))
    read, (cos, sin) = step.read_rows, step.turns[last.turn]
    stream, pools = step.stream[read], (step.key_pools[-1], step.value_pools[-1])
    query = last.query(stream, update[read]).view(-1, HEADS, DIM)
    heads = last.key_value(step.stream, update).view(-1, 2 * KV_HEADS, DIM)
    key, value = kernels.rotate(heads[:, :KV_HEADS].contiguous(), cos, sin), heads[:, KV_HEADS:]
    kernels.store_kv(key, value, *pools, step.keep_rows, step.keep_slots)
    if not len(read):
        return torch.empty(0, HIDDEN)
    query = kernels.rotate(query, cos[read], sin[read])
    attended = kernels.attend(query, key, value, *pools, step.read_plan, last.shape).flatten(1)
    update = last.feed_forward(stream, last.attention_out(attended))
    return kernels.rms_norm(stream + update, last.norm, last.eps)


def copied(step: LayersInput) -> LayersInput:
    changed = ("stream", "update", "key_pools", "value_pools")
    return replace(step, **{name: getattr(step, name).clone() for name in changed})


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    ("rows", "read"), [([1], 1), ([24], 1), ([9, 1, 30], 40), ([100, 90], 2), ([100, 90], 190), ([30], 0)]
)
def test_joined_layers_have_the_bits_of_their_operations(
    kernels: CpuKernels, rows: list[int], read: int, *, int8: bool
) -> None:
    check_bits(kernels, rows, read=read, num_layers=LAYERS, int8=int8)


@pytest.mark.parametrize("num_layers", [0, 1])
def test_few_layers_before_the_last_will_do(kernels: CpuKernels, num_layers: int) -> None:
    check_bits(kernels, [24, 3], read=2, num_layers=num_layers, int8=False)


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [[1], [24], [9, 23], [9, 24]])
def test_threads_that_each_add_to_a_copy_of_the_stream_give_the_same_bits(
    kernels: CpuKernels, rows: list[int], threads: int, *, coded: bool
) -> None:
    """As they do in steps of up to 32 rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check_bits(kernels, rows, read=2, num_layers=LAYERS, int8=False, coded=coded)
    finally:
        torch.set_num_threads(before)


def check_bits(
    kernels: CpuKernels, rows: list[int], *, read: int, num_layers: int, int8: bool, coded: bool = False
) -> None:
    case = make_case(
        prefix_with_rows(77, rows), num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.bfloat16
    )
    layers = [packed(kernels, case, number, int8=int8, coded=coded) for number in range(num_layers)]
    last = packed_last(kernels, case, int8=int8)
    step = step_of(case, kernels, read, num_layers)
    wanted_step = copied(step)
    wanted = one_by_one(kernels, layers, last, wanted_step)

    joined = kernels.join_layers(layers, last)
    assert joined is not None
    got = joined(step)

    assert got.shape == (len(step.read_rows), HIDDEN)
    assert got.isfinite().all()
    assert torch.equal(got, wanted)
    assert torch.equal(step.stream, wanted_step.stream)
    for name in ("key_pools", "value_pools"):
        assert torch.equal(getattr(step, name).nan_to_num(), getattr(wanted_step, name).nan_to_num())
    assert len(step.keep_rows)


def plain_case(head_dim: int = DIM) -> Case:
    return make_case(
        prefix_with_rows(40, [5]), num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=head_dim, dtype=torch.bfloat16
    )


def test_layers_of_another_set_are_not_joined(kernels: CpuKernels) -> None:
    case, other = plain_case(), ReferenceKernels()
    last = packed_last(kernels, case)
    assert kernels.join_layers([packed(kernels, case, 0), packed(other, case, 1)], last) is None
    assert kernels.join_layers([packed(kernels, case, 0)], packed_last(other, case)) is None
    assert other.join_layers([packed(other, case, 0)], packed_last(other, case)) is None


def test_layers_with_heads_that_the_c_code_does_not_read_are_not_joined(kernels: CpuKernels) -> None:
    layer, last = packed(kernels, plain_case(), 0), packed_last(kernels, plain_case())
    odd = replace(layer.shape, head_dim=24)
    assert kernels.join_layers([replace(layer, shape=odd)], replace(last, shape=odd)) is None
    assert kernels.join_layers([layer, replace(layer, shape=replace(layer.shape, num_heads=4))], last) is None


def test_parts_that_do_not_fit_each_other_are_not_joined(kernels: CpuKernels) -> None:
    layer, last = packed(kernels, plain_case(), 0), packed_last(kernels, plain_case())
    narrow = kernels.pack_linear(half(HIDDEN - 32, HEADS * DIM, seed=0))
    assert kernels.join_layers([replace(layer, attention_out=narrow)], last) is None
    assert kernels.join_layers([layer], replace(last, attention_out=narrow)) is None
    assert kernels.join_layers([layer], replace(last, query=last.key_value)) is None
    assert kernels.join_layers([layer], replace(last, key_value=last.query)) is None
    assert kernels.join_layers([layer], replace(last, norm=last.norm[:-32])) is None


def shorter(pools: Tensor) -> Tensor:
    return pools[:, :, :16].contiguous()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda s: replace(s, stream=s.stream.bfloat16()), "stream: torch.float32 wanted, got torch.bfloat16"),
        (lambda s: replace(s, update=s.update[:3]), r"update: shape \[5, 160\] wanted, got \[3, 160\]"),
        (lambda s: replace(s, turns=[s.turns[0], (s.turns[1][0], s.turns[1][1][:, :7])]), r"turns: shape \[5, 16\]"),
        (lambda s: replace(s, key_pools=s.key_pools[:3]), "key_pools: pools of 4 layers wanted, got 3"),
        (lambda s: replace(s, turns=s.turns[:1]), "turns: 2 kinds of angles wanted, got 1"),
        (
            lambda s: replace(s, key_pools=shorter(s.key_pools), value_pools=shorter(s.value_pools)),
            "key_pools: .* slots or more wanted by the plan, got 16",
        ),
        (lambda s: replace(s, value_pools=s.value_pools[:, :, :16]), "value_pools: shape"),
        (lambda s: replace(s, value_pools=s.value_pools.float()), "value_pools: torch.bfloat16 wanted"),
        (lambda s: replace(s, key_pools=s.key_pools.mT.contiguous().mT), "key_pools: a dense tensor wanted"),
        (lambda s: replace(s, keep_slots=s.keep_slots[:1]), r"keep_slots: shape \[3\] wanted, got \[1\]"),
        (lambda s: replace(s, keep_rows=s.keep_rows.int()), "keep_rows: torch.int64 wanted"),
        (lambda s: replace(s, read_rows=s.read_rows[:1]), r"read_rows: shape \[2\] wanted, got \[1\]"),
        (lambda s: replace(s, read_plan=s.plan), r"read_rows: shape \[5\] wanted, got \[2\]"),
        (lambda s: replace(s, plan=ReferenceKernels().plan(plain_case().table)), "plan: a CpuPlan wanted"),
    ],
)
def test_what_the_c_code_would_misread_is_refused(
    kernels: CpuKernels, broken: Callable[[LayersInput], LayersInput], message: str
) -> None:
    case = plain_case()
    joined = kernels.join_layers(
        [packed(kernels, case, number) for number in range(LAYERS)], packed_last(kernels, case)
    )
    assert joined is not None

    with pytest.raises(KernelInputError, match=message):
        joined(broken(step_of(case, kernels)))
