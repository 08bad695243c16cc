"""What every kernel set promises, as tests to inherit: agreement with the float32 judge.

A subclass names the set (``kernels``), where its tensors live (``device``) and its dtypes.
Inputs are rounded to the dtype first, so the judge sees the same numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.api import CODE_LIMIT, Activation, KernelInputError, KernelSet, PoolHalf, QuantisedPool
from kernels.reference import ReferenceKernels
from kernels.weights import dense
from tests.kernels.cases import Case, coded_weight, make_case, prefix_with_rows, random_trie

JUDGE = ReferenceKernels()

# largest absolute error against float32 for unit-variance inputs, plus the same share of the value
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

HEADS = {1: (2, 2), 2: (4, 2), 3: (9, 3), 4: (4, 1), 7: (14, 2), 8: (8, 1), 16: (16, 1)}


def attend(kernels: KernelSet, case: Case, device: str = "cpu") -> Tensor:
    return kernels.attend(
        case.query.to(device),
        case.key.to(device),
        case.value.to(device),
        pool_to(case.key_pool, device),
        pool_to(case.value_pool, device),
        kernels.plan(case.table),
        case.shape,
    ).cpu()


def pool_to(pool: PoolHalf, device: str) -> PoolHalf:
    if isinstance(pool, QuantisedPool):
        return QuantisedPool(codes=pool.codes.to(device, copy=True), scales=pool.scales.to(device, copy=True))
    return pool.to(device, copy=True)


def empty_pool(codes: torch.dtype, device: str) -> QuantisedPool:
    return QuantisedPool(
        codes=torch.empty(2, 40, 80, dtype=codes, device=device),
        scales=torch.full((2, 40), float("nan"), device=device),
    )


def stored(
    kernels: KernelSet, packed: Tensor, codes: torch.dtype, rows: Tensor, slots: Tensor, device: str
) -> tuple[Tensor, QuantisedPool, QuantisedPool]:
    """Store rows of ``packed`` ``[T, 4, 80]`` (two heads of K, two of V): them as rounded, and both pools."""
    fresh = packed.to(device, copy=True)
    keys, values = (empty_pool(codes, device) for _ in range(2))
    kernels.store_kv(fresh[:, :2], fresh[:, 2:], keys, values, rows.to(device), slots.to(device))
    keys, values = (QuantisedPool(codes=pool.codes.cpu(), scales=pool.scales.cpu()) for pool in (keys, values))
    return fresh.cpu(), keys, values


def close(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.float().cpu(), wanted.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


class KernelContract:
    kernels: ClassVar[KernelSet]
    device: ClassVar[str] = "cpu"
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    rounds_float8: ClassVar[bool] = True
    """False where narrowing to 8-bit floats is right for numbers alone that need no rounding."""

    @pytest.fixture
    def rng(self) -> torch.Generator:
        return torch.Generator().manual_seed(7)

    def check(self, case: Case, dtype: torch.dtype) -> None:
        got = attend(self.kernels, case, self.device)

        assert got.dtype == dtype
        close(got, attend(JUDGE, case), dtype)

    @pytest.mark.parametrize("seed", range(4))
    def test_attend_agrees_on_random_tries(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for dtype in self.dtypes:
            nodes = random_trie(rng, num_nodes=9, max_tokens=40)
            case = make_case(nodes, num_heads=4, num_kv_heads=2, head_dim=64, dtype=dtype, seed=seed)
            self.check(case, dtype)

    @pytest.mark.parametrize("group", HEADS)
    def test_attend_reads_the_right_kv_head_for_every_gqa_group(self, group: int) -> None:
        num_heads, num_kv_heads = HEADS[group]
        nodes = prefix_with_rows(35, [1, 9, 4])
        for dtype in self.dtypes:
            case = make_case(nodes, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=64, dtype=dtype)
            self.check(case, dtype)

    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_b028_attend_takes_every_head_size(self, head_dim: int) -> None:
        nodes = prefix_with_rows(19, [3, 17])
        for dtype in self.dtypes:
            self.check(make_case(nodes, num_heads=2, num_kv_heads=1, head_dim=head_dim, dtype=dtype), dtype)

    @pytest.mark.parametrize("block_size", [16, 32, 64])
    @pytest.mark.parametrize("past", [-1, 0, 1])
    def test_b029_attend_reads_partial_blocks_and_no_slot_beyond(self, block_size: int, past: int) -> None:
        dtype = self.dtypes[-1]
        nodes = prefix_with_rows(block_size + past, [2, 5])
        case = make_case(nodes, num_heads=2, num_kv_heads=1, head_dim=64, block_size=block_size, dtype=dtype)
        assert isinstance(case.key_pool, Tensor)
        assert case.key_pool.isnan().any()

        self.check(case, dtype)

    @pytest.mark.parametrize("row_tokens", [[1], [2, 1], [15, 16, 17], [63, 64, 65], [1] * 70])
    @pytest.mark.parametrize("prefix_tokens", [0, 1, 40])
    def test_attend_takes_any_suffix_length(self, prefix_tokens: int, row_tokens: list[int]) -> None:
        nodes = prefix_with_rows(prefix_tokens, row_tokens)
        self.check(make_case(nodes, num_heads=2, num_kv_heads=1, head_dim=64), torch.float32)

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("read_ratio", [0.02, 0.4])
    def test_attend_takes_the_last_layer_form(self, seed: int, read_ratio: float) -> None:
        nodes = random_trie(np.random.default_rng(seed + 50), num_nodes=8, max_tokens=60)
        case = make_case(nodes, num_heads=6, num_kv_heads=2, head_dim=64, read_ratio=read_ratio, seed=seed)

        self.check(case, torch.float32)

    @pytest.mark.parametrize("window", [1, 7, 33, 1000])
    def test_attend_keeps_the_sliding_window(self, window: int) -> None:
        nodes = random_trie(np.random.default_rng(3), num_nodes=7, max_tokens=50)
        self.check(make_case(nodes, num_heads=2, num_kv_heads=1, head_dim=64, window=window), torch.float32)

    def test_attend_caps_the_logits(self) -> None:
        nodes = random_trie(np.random.default_rng(4), num_nodes=7, max_tokens=30)
        self.check(make_case(nodes, num_heads=2, num_kv_heads=1, head_dim=64, soft_cap=0.5), torch.float32)

    def test_attend_of_an_empty_step_is_empty(self) -> None:
        case = make_case(prefix_with_rows(5, [3]), num_heads=2, num_kv_heads=1, head_dim=64, read_ratio=0.0)

        assert attend(self.kernels, case, self.device).shape == (0, 2, 64)

    def test_attend_leaves_no_row_unwritten_in_scores_far_from_zero(self) -> None:
        case = make_case(prefix_with_rows(33, [4, 4]), num_heads=2, num_kv_heads=1, head_dim=64)
        large = dataclasses.replace(case, query=case.query * 60)
        got, wanted = attend(self.kernels, large, self.device), attend(JUDGE, large)

        torch.testing.assert_close(got, wanted, atol=2e-4, rtol=2e-4)

    def test_attend_refuses_a_pool_smaller_than_the_plan(self) -> None:
        case = make_case(prefix_with_rows(33, [4]), num_heads=2, num_kv_heads=1, head_dim=64)
        slots = int(case.table.block_ids.max()) * case.table.block_size
        pools: dict[str, Any] = {"key_pool": case.key_pool, "value_pool": case.value_pool}
        short: Case = dataclasses.replace(case, **{n: p[:, :slots] for n, p in pools.items()})

        with pytest.raises(KernelInputError, match=r"key_pool: \d+ slots or more wanted by the plan, got \d+"):
            attend(self.kernels, short, self.device)

    def test_attend_refuses_the_plan_of_another_set(self) -> None:
        case = make_case(prefix_with_rows(3, [4]), num_heads=2, num_kv_heads=1, head_dim=64)
        foreign: Any = object()

        with pytest.raises(KernelInputError, match=r"plan: a .*Plan wanted, got a object"):
            self.kernels.attend(case.query, case.key, case.value, case.key_pool, case.value_pool, foreign, case.shape)

    def test_attend_refuses_a_query_of_another_shape(self) -> None:
        case = make_case(prefix_with_rows(3, [4]), num_heads=2, num_kv_heads=1, head_dim=64)

        with pytest.raises(KernelInputError, match=r"query: shape \[4, 2, 64\] wanted, got \[3, 2, 64\]"):
            attend(self.kernels, dataclasses.replace(case, query=case.query[1:]), self.device)

    @pytest.mark.parametrize(("tokens", "width"), [(1, 64), (5, 576), (0, 64), (3, 100)])
    def test_rms_norm_agrees(self, rng: torch.Generator, tokens: int, width: int) -> None:
        for dtype in self.dtypes:
            x = (torch.randn(tokens, width, generator=rng) * 3).to(dtype)
            weight = torch.randn(width, generator=rng).to(dtype)
            got = self.kernels.rms_norm(x.to(self.device), weight.to(self.device), 1e-5)

            assert got.dtype == dtype
            close(got, JUDGE.rms_norm(x, weight, 1e-5), dtype)

    @pytest.mark.parametrize(("tokens", "width"), [(1, 64), (5, 576), (0, 64), (3, 100)])
    def test_add_rms_norm_agrees_and_adds_in_float32(self, rng: torch.Generator, tokens: int, width: int) -> None:
        for dtype in self.dtypes:
            stream = torch.randn(tokens, width, generator=rng) * 30
            update = torch.randn(tokens, 2 * width, generator=rng).to(dtype)[:, :width]
            weight = torch.randn(width, generator=rng)
            grown, wanted = stream.to(self.device, copy=True), stream.clone()
            got = self.kernels.add_rms_norm(grown, update.to(self.device), weight.to(self.device), 1e-5)
            normed = JUDGE.add_rms_norm(wanted, update, weight, 1e-5)

            assert got.dtype == dtype
            close(got, normed, dtype)
            torch.testing.assert_close(grown.cpu(), stream + update.float(), rtol=0, atol=0)
            torch.testing.assert_close(wanted, stream + update.float(), rtol=0, atol=0)

    def test_rms_norm_takes_heads_and_reads_strided_input(self, rng: torch.Generator) -> None:
        weight = torch.randn(80, generator=rng)
        for dtype in self.dtypes:
            packed = torch.randn(4, 5, 80, generator=rng).to(dtype)
            got = self.kernels.rms_norm(packed.to(self.device)[:, 1:4], weight.to(self.device), 1e-6)

            assert got.dtype == dtype
            close(got, JUDGE.rms_norm(packed[:, 1:4], weight, 1e-6), dtype)

    @pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(5, 3, 64), (1, 1, 80), (0, 2, 64), (7, 9, 128)])
    def test_rotate_agrees_and_reads_strided_input(
        self, rng: torch.Generator, tokens: int, heads: int, head_dim: int
    ) -> None:
        angle = torch.rand(tokens, head_dim // 2, generator=rng) * 6
        for dtype in self.dtypes:
            packed = torch.randn(tokens, heads + 2, head_dim, generator=rng).to(dtype)
            wanted = JUDGE.rotate(packed[:, :heads], angle.cos(), angle.sin())
            cos, sin = angle.cos().to(self.device), angle.sin().to(self.device)
            got = self.kernels.rotate(packed.to(self.device)[:, :heads], cos, sin)

            assert got.dtype == dtype
            close(got, wanted, dtype)

    @pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(5, 3, 64), (1, 1, 80), (0, 2, 64), (7, 9, 128)])
    def test_norm_rotate_is_the_norm_of_each_head_then_the_turn(
        self, rng: torch.Generator, tokens: int, heads: int, head_dim: int
    ) -> None:
        angle = torch.rand(tokens, head_dim // 2, generator=rng) * 6
        weight = torch.randn(head_dim, generator=rng)
        for dtype in self.dtypes:
            packed = (torch.randn(tokens, heads + 2, head_dim, generator=rng) * 3).to(dtype)
            x = packed[:, 1 : heads + 1].double()
            normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
            wanted = torch.view_as_complex(torch.stack(normed.chunk(2, dim=-1), dim=-1)) * torch.polar(
                torch.ones_like(angle).double(), angle.double()
            ).unsqueeze(1)
            cos, sin = angle.cos().to(self.device), angle.sin().to(self.device)
            got = self.kernels.norm_rotate(
                packed.to(self.device)[:, 1 : heads + 1], weight.to(self.device), 1e-6, cos, sin
            )

            assert got.dtype == dtype
            close(got, torch.cat([wanted.real, wanted.imag], dim=-1), dtype)

    @pytest.mark.parametrize(("tokens", "width"), [(1, 8), (5, 300), (0, 16), (3, 1536)])
    def test_gates_agree(self, rng: torch.Generator, tokens: int, width: int) -> None:
        for dtype in self.dtypes:
            gate_up = (torch.randn(tokens, 2 * width, generator=rng) * 2).to(dtype)
            for gate, judge in ((self.kernels.swiglu, JUDGE.swiglu), (self.kernels.geglu, JUDGE.geglu)):
                got = gate(gate_up.to(self.device))

                assert got.dtype == dtype
                close(got, judge(gate_up), dtype)

    @pytest.mark.parametrize("kept", [[], [0], [4, 1, 3]])
    def test_store_kv_writes_its_slots_and_no_other(self, rng: torch.Generator, kept: list[int]) -> None:
        for dtype in self.dtypes:
            key = torch.randn(6, 2, 80, generator=rng).to(dtype)
            value = torch.randn(6, 2, 80, generator=rng).to(dtype)
            rows = torch.tensor(kept, dtype=torch.int64)
            slots = torch.randperm(40, generator=rng)[: len(kept)]
            wanted = torch.full((2, 2, 40, 80), float("nan"), dtype=dtype)
            got = wanted.to(self.device, copy=True)
            JUDGE.store_kv(key, value, wanted[0], wanted[1], rows, slots)
            packed = key.to(self.device), value.to(self.device)
            self.kernels.store_kv(*packed, got[0], got[1], rows.to(self.device), slots.to(self.device))

            torch.testing.assert_close(got.cpu(), wanted, atol=0, rtol=0, equal_nan=True)

    @pytest.mark.parametrize("codes", CODE_LIMIT, ids=str)
    @pytest.mark.parametrize("option", ["plain", "last_layer", "window", "soft_cap", "odd_head"])
    def test_attend_reads_codes_and_scales(self, codes: torch.dtype, option: str) -> None:
        for dtype in self.dtypes:
            nodes = random_trie(np.random.default_rng(11), num_nodes=8, max_tokens=40)
            case = make_case(
                nodes,
                num_heads=6,
                num_kv_heads=2,
                head_dim=80 if option == "odd_head" else 64,
                dtype=dtype,
                window=33 if option == "window" else None,
                soft_cap=0.5 if option == "soft_cap" else None,
                read_ratio=0.3 if option == "last_layer" else None,
                codes=codes,
            )
            self.check(case, dtype)

    @pytest.mark.parametrize("codes", CODE_LIMIT, ids=str)
    @pytest.mark.parametrize("kept", [[], [0], [4, 1, 3]])
    def test_store_kv_rounds_all_rows_to_what_the_pool_holds(
        self, rng: torch.Generator, codes: torch.dtype, kept: list[int]
    ) -> None:
        for dtype in self.dtypes:
            packed = torch.randn(6, 4, 80, generator=rng).to(dtype)
            if codes == torch.float8_e4m3fn and not self.rounds_float8:
                packed = (packed.float() * 100).to(codes).to(dtype)
                packed[..., 0] = CODE_LIMIT[codes]
            packed[5, 1] = 0.0
            rows, slots = torch.tensor(kept, dtype=torch.int64), torch.randperm(40, generator=rng)[: len(kept)]
            got, *got_pools = stored(self.kernels, packed, codes, rows, slots, self.device)
            wanted, *wanted_pools = stored(JUDGE, packed, codes, rows, slots, "cpu")

            # half of the widest step between two codes: 1, or 32 for the 8-bit float, of the limit
            step = (1.0 if codes == torch.int8 else 32.0) / CODE_LIMIT[codes]
            bound = packed.float().abs().amax(-1, keepdim=True) * (step / 2 + 2.0**-8)
            assert ((got.float() - packed.float()).abs() <= bound).all()
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0.07)
            assert (got[5, 1] == 0).all()
            for half, judged, heads in zip(got_pools, wanted_pools, (got[:, :2], got[:, 2:]), strict=True):
                torch.testing.assert_close(half.scales, judged.scales, atol=0, rtol=1e-6, equal_nan=True)
                assert int(half.scales.isfinite().sum()) == 2 * len(kept)
                numbers = half.codes.float() * half.scales[..., None]
                torch.testing.assert_close(
                    numbers[:, slots], heads[rows].float().transpose(0, 1), atol=1e-6, rtol=2.0**-8
                )

    @pytest.mark.parametrize("codes", CODE_LIMIT, ids=str)
    @pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
    def test_store_kv_keeps_what_is_not_finite_visible(self, codes: torch.dtype, number: float) -> None:
        fresh, index = torch.ones(3, 4, 80), torch.arange(3)
        fresh[1, 0, 7] = fresh[2, 3, 9] = number
        rounded, keys, values = stored(self.kernels, fresh, codes, index, index, self.device)

        assert keys.scales[:, :3].isnan().tolist() == [[False, True, False], [False, False, False]]
        assert values.scales[:, :3].isnan().tolist() == [[False, False, False], [False, False, True]]
        assert rounded.isfinite().all(-1).tolist() == [[True] * 4, [False, True, True, True], [True] * 3 + [False]]

    def test_halves_of_two_kinds_are_refused(self) -> None:
        fresh, index = torch.ones(3, 2, 80, device=self.device), torch.arange(3, device=self.device)
        plain = torch.empty(2, 40, 80, device=self.device)
        with pytest.raises(KernelInputError, match="value_pool: a Tensor as key_pool is wanted, got a QuantisedPool"):
            self.kernels.store_kv(fresh, fresh, plain, empty_pool(torch.int8, self.device), index, index)

    @pytest.mark.parametrize(("rows", "wide_in", "wide_out"), [(1, 64, 48), (33, 96, 160), (0, 64, 48)])
    @pytest.mark.parametrize("with_bias", [False, True])
    def test_pack_linear_agrees(
        self, rng: torch.Generator, rows: int, wide_in: int, wide_out: int, *, with_bias: bool
    ) -> None:
        for dtype in self.dtypes:
            x = torch.randn(rows, wide_in, generator=rng).to(dtype)
            weight = (torch.randn(wide_out, wide_in, generator=rng) / wide_in**0.5).to(dtype)
            bias = torch.randn(wide_out, generator=rng).to(dtype) if with_bias else None
            on_device = None if bias is None else bias.to(self.device)
            got = self.kernels.pack_linear(weight.to(self.device), on_device)(x.to(self.device))

            assert got.dtype == dtype
            close(got, JUDGE.pack_linear(weight, bias)(x), dtype)

    @pytest.mark.parametrize(("rows", "wide_in", "wide_out"), [(1, 64, 48), (33, 100, 160), (300, 32, 7), (0, 64, 48)])
    @pytest.mark.parametrize("with_bias", [False, True])
    def test_pack_normed_linear_adds_norms_and_multiplies(
        self, rng: torch.Generator, rows: int, wide_in: int, wide_out: int, *, with_bias: bool
    ) -> None:
        for dtype in self.dtypes:
            stream, norm = torch.randn(rows, wide_in, generator=rng) * 3, torch.rand(wide_in, generator=rng) + 0.5
            update = torch.randn(rows, 2 * wide_in, generator=rng).to(dtype)[:, wide_in:]
            weight = (torch.randn(wide_out, wide_in, generator=rng) / wide_in**0.5).to(dtype)
            bias = torch.randn(wide_out, generator=rng).to(dtype) if with_bias else None
            grown, on_device = stream.to(self.device, copy=True), None if bias is None else bias.to(self.device)
            packed = self.kernels.pack_normed_linear(norm.to(self.device), 1e-5, weight.to(self.device), on_device)
            got = packed(grown, update.to(self.device))

            assert got.dtype == dtype
            close(got, JUDGE.pack_normed_linear(norm, 1e-5, weight, bias)(stream.clone(), update), dtype)
            torch.testing.assert_close(grown.cpu(), stream + update.float(), rtol=0, atol=0)

    @pytest.mark.parametrize(("rows", "width", "inner"), [(1, 64, 48), (33, 100, 80), (300, 32, 7), (0, 64, 48)])
    @pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
    def test_pack_feed_forward_adds_norms_gates_and_multiplies(
        self, rng: torch.Generator, rows: int, width: int, inner: int, activation: Activation
    ) -> None:
        for dtype in self.dtypes:
            stream, norm = torch.randn(rows, width, generator=rng) * 3, torch.rand(width, generator=rng) + 0.5
            update = torch.randn(rows, width, generator=rng).to(dtype)
            gate_up = (torch.randn(2 * inner, width, generator=rng) / width**0.5).to(dtype)
            down = (torch.randn(width, inner, generator=rng) / inner**0.5).to(dtype)
            grown, weights = stream.to(self.device, copy=True), (gate_up.to(self.device), down.to(self.device))
            got = self.kernels.pack_feed_forward(norm.to(self.device), 1e-5, *weights, activation)(
                grown, update.to(self.device)
            )

            h = F.rms_norm(stream + update.float(), (width,), norm, 1e-5)
            gate, up = (h @ gate_up.float().T).chunk(2, dim=-1)
            opened = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
            assert got.dtype == dtype
            tolerance = 2 * TOLERANCE[dtype]  # a set may round between the products
            wanted = (opened * up) @ down.float().T
            torch.testing.assert_close(got.float().cpu(), wanted, atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(grown.cpu(), stream + update.float(), rtol=0, atol=0)

    @pytest.mark.parametrize("bits", [4, 8])
    def test_codes_give_what_their_numbers_give(self, bits: int) -> None:
        """Few rows and many; outputs are no whole panel."""
        kernels, norm = self.kernels, torch.ones(96, device=self.device)
        numbers = torch.randn(150, 96, generator=torch.Generator().manual_seed(1)).to(self.device)
        for dtype, rows in itertools.product(self.dtypes, (3, 150)):
            weights = [coded_weight(*shape, bits=bits, dtype=dtype) for shape in ((50, 96), (192, 96), (96, 96))]
            plain, gate_up, down = (weight.to(torch.device(self.device)) for weight in weights)
            stream, x = numbers[:rows], numbers[:rows].to(dtype)
            pairs = [
                tuple(kernels.pack_linear(each)(x) for each in (plain, dense(plain))),
                tuple(
                    kernels.pack_normed_linear(norm, 1e-5, each)(stream.clone(), x) for each in (plain, dense(plain))
                ),
                tuple(
                    kernels.pack_feed_forward(norm, 1e-5, first, second, "silu")(stream.clone(), x)
                    for first, second in ((gate_up, down), (dense(gate_up), dense(down)))
                ),
            ]
            for got, wanted in pairs:
                assert torch.equal(got, wanted)

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            ({"bits": 5}, "weight: codes in 4 or 8 bits wanted, got 5"),
            (
                {"codes": torch.zeros(8, 40, dtype=torch.int8)},
                "codes of a multiple of 32 inputs wanted, got 40",
            ),
            ({"codes": torch.zeros(8, 64, dtype=torch.int16)}, "weight.codes: torch.int8 wanted, got torch.int16"),
            ({"scales": torch.zeros(8, 3)}, r"weight.scales: shape \[8, 2\] wanted, got \[8, 3\]"),
            ({"offsets": torch.zeros(8, 2).half()}, "weight.offsets: torch.float32 wanted, got torch.float16"),
        ],
    )
    def test_codes_that_do_not_fit_are_refused(self, broken: dict[str, Any], message: str) -> None:
        with pytest.raises(KernelInputError, match=message):
            self.kernels.pack_linear(dataclasses.replace(coded_weight(8, 64, bits=8), **broken))

    def test_pack_normed_linear_refuses_a_norm_of_another_width(self) -> None:
        with pytest.raises(KernelInputError, match=r"norm: shape \[64\] wanted, got \[60\]"):
            self.kernels.pack_normed_linear(
                torch.ones(60, device=self.device), 1e-5, torch.zeros(8, 64, device=self.device)
            )

    def test_pack_feed_forward_refuses_parts_that_do_not_fit(self) -> None:
        norm, gate_up, down = (torch.zeros(shape, device=self.device) for shape in ((64,), (96, 64), (64, 50)))
        with pytest.raises(KernelInputError, match=r"gate_up: shape \[100, 64\] wanted, got \[96, 64\]"):
            self.kernels.pack_feed_forward(norm, 1e-5, gate_up, down, "silu")

    @pytest.mark.parametrize(("rows", "width", "inner"), [(1, 64, 48), (33, 100, 160), (300, 32, 70), (0, 64, 48)])
    @pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
    def test_pack_feed_forward_in_8_bits_agrees_or_is_refused(
        self, rng: torch.Generator, rows: int, width: int, inner: int, activation: Activation
    ) -> None:
        stream, norm = torch.randn(rows, width, generator=rng), torch.rand(width, generator=rng) + 0.5
        update = torch.randn(rows, width, generator=rng).bfloat16()
        gate_up = (torch.randn(2 * inner, width, generator=rng) / width**0.5).bfloat16()
        down = (torch.randn(width, inner, generator=rng) / inner**0.5).bfloat16()
        arguments = (norm, 1e-5, gate_up, down, activation)
        if not self.kernels.has_int8:
            with pytest.raises(KernelInputError, match="int8: feed-forward parts in 8 bits run on a CPU only"):
                self.kernels.pack_feed_forward(*arguments, int8=True)
            return
        grown = stream.clone()
        got = self.kernels.pack_feed_forward(*arguments, int8=True)(grown, update)

        assert got.dtype == torch.bfloat16
        assert torch.equal(grown, stream + update.float())
        wanted = JUDGE.pack_feed_forward(*arguments, int8=True)(stream.clone(), update)
        exact = JUDGE.pack_feed_forward(*arguments)(stream.clone(), update).float()
        if rows:
            # sets round to bfloat16 at other places, and codes beside a boundary are others then
            assert float((got.float() - wanted.float()).std() / exact.std()) < 0.015
            assert 0.005 < float((got.float() - exact).std() / exact.std()) < 0.025

    def test_pack_feed_forward_in_8_bits_loses_little_to_large_inputs(self, rng: torch.Generator) -> None:
        """Of a row, one number is 200 times the others: without turning them, these would have two bits left."""
        if not self.kernels.has_int8:
            pytest.skip("no feed-forward parts in 8 bits here")
        stream, norm = torch.randn(20, 256, generator=rng), torch.ones(256)
        stream[:, 77] *= 200
        gate_up, down = (torch.randn(shape, generator=rng).bfloat16() / 16 for shape in ((384, 256), (256, 192)))
        gate_up[:, 77] = 0
        nothing = torch.zeros(20, 256).bfloat16()
        got, exact = (
            self.kernels.pack_feed_forward(norm, 1e-5, gate_up, down, "silu", int8=int8)(
                stream.clone(), nothing
            ).float()
            for int8 in (True, False)
        )

        assert float((got - exact).std() / exact.std()) < 0.2

    def test_pack_feed_forward_in_8_bits_shows_a_row_that_is_not_a_number(self) -> None:
        if not self.kernels.has_int8:
            pytest.skip("no feed-forward parts in 8 bits here")
        stream = torch.ones(4, 64)
        stream[1, 3], stream[2, 5], stream[3] = torch.nan, torch.inf, 0
        weights = torch.ones(128, 64).bfloat16(), torch.ones(64, 64).bfloat16()
        part = self.kernels.pack_feed_forward(torch.ones(64), 1e-5, *weights, "silu", int8=True)
        got = part(stream, torch.zeros(4, 64).bfloat16())

        assert got.isfinite().all(-1).tolist() == [True, False, False, True]
        assert got[3].eq(0).all()

    def test_pack_feed_forward_in_8_bits_is_for_bfloat16(self) -> None:
        norm, gate_up, down = (torch.zeros(shape, device=self.device) for shape in ((64,), (96, 64), (64, 48)))
        with pytest.raises(
            KernelInputError, match=r"gate_up: torch.bfloat16 wanted for products in 8 bits, got torch.fl"
        ):
            self.kernels.pack_feed_forward(norm, 1e-5, gate_up, down, "silu", int8=True)

    @pytest.mark.parametrize("soft_cap", [None, 0.5])
    @pytest.mark.parametrize(("rows", "labels"), [(1, 2), (5, 7), (0, 2)])
    def test_label_logits_agree(self, rng: torch.Generator, rows: int, labels: int, soft_cap: float | None) -> None:
        hidden = torch.randn(rows, 96, generator=rng)
        for dtype in self.dtypes:
            head = (torch.randn(301, 96, generator=rng) / 10).to(dtype)
            ids = torch.randint(301, (rows, labels), generator=rng)
            got = self.kernels.label_logits(hidden.to(self.device), head.to(self.device), ids.to(self.device), soft_cap)

            assert got.dtype == torch.float32
            close(got, JUDGE.label_logits(hidden, head, ids, soft_cap), dtype)

    @pytest.mark.parametrize("soft_cap", [None, 0.5])
    @pytest.mark.parametrize(("rows", "vocabulary", "width"), [(1, 33, 96), (5, 1100, 90), (40, 64, 32), (0, 10, 96)])
    def test_vocabulary_logits_agree(
        self, rng: torch.Generator, rows: int, vocabulary: int, width: int, soft_cap: float | None
    ) -> None:
        hidden = torch.randn(rows, width, generator=rng)
        for dtype in self.dtypes:
            head = (torch.randn(vocabulary, width, generator=rng) / 10).to(dtype)
            got = self.kernels.vocabulary_logits(hidden.to(self.device), head.to(self.device), soft_cap)

            wanted = hidden.double() @ head.double().T
            wanted = wanted if soft_cap is None else soft_cap * (wanted / soft_cap).tanh()
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.cpu().double(), wanted, atol=5e-5, rtol=5e-5)

    @pytest.mark.parametrize("soft_cap", [None, 30.0])
    @pytest.mark.parametrize(("rows", "vocabulary"), [(1, 33), (5, 1000), (0, 10)])
    def test_log_sum_exp_agrees_and_survives_large_logits(
        self, rng: torch.Generator, rows: int, vocabulary: int, soft_cap: float | None
    ) -> None:
        hidden = torch.randn(rows, 96, generator=rng) * 20
        for dtype in self.dtypes:
            head = torch.randn(vocabulary, 96, generator=rng).to(dtype)
            got = self.kernels.log_sum_exp(hidden.to(self.device), head.to(self.device), soft_cap)
            logits = hidden.double() @ head.double().T
            if soft_cap is not None:
                logits = soft_cap * torch.tanh(logits / soft_cap)

            assert got.dtype == torch.float32
            close(got, logits.logsumexp(-1), dtype)

    def test_shapes_that_do_not_fit_are_refused_with_wanted_and_got(self) -> None:
        x = torch.zeros(2, 6, device=self.device)
        with pytest.raises(KernelInputError, match=r"weight: shape \[6\] wanted, got \[5\]"):
            self.kernels.rms_norm(x, torch.zeros(5, device=self.device), 1e-5)
        with pytest.raises(KernelInputError, match=r"stream: torch\.float32 wanted, got torch\.float16"):
            self.kernels.add_rms_norm(x.half(), x, torch.zeros(6, device=self.device), 1e-5)
        with pytest.raises(KernelInputError, match=r"update: shape \[2, 6\] wanted, got \[2, 4\]"):
            self.kernels.add_rms_norm(x, x[:, :4], torch.zeros(6, device=self.device), 1e-5)
        with pytest.raises(KernelInputError, match="gate_up: an even width wanted, got 5"):
            self.kernels.swiglu(torch.zeros(2, 5, device=self.device))
        with pytest.raises(KernelInputError, match=r"head: shape \[V, 6\] wanted, got \[4, 7\]"):
            self.kernels.log_sum_exp(x, torch.zeros(4, 7, device=self.device))
        head, ids = torch.zeros(4, 6, device=self.device), torch.zeros(2, 1, dtype=torch.int32, device=self.device)
        with pytest.raises(KernelInputError, match=r"label_ids: torch\.int64 wanted, got torch\.int32"):
            self.kernels.label_logits(x, head, ids)
