from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from engine.batch import lay_out
from engine.config import EngineConfig
from engine.errors import DeviceError
from engine.kv_pool import KvPool, count_blocks, free_memory
from engine.prefix_cache import PrefixCache
from engine.prefix_tree import Segment
from engine.scheduler import Scheduler
from kernels.api import QuantisedPool, SpanTable
from kernels.cpu import CpuPlan
from tests.helpers.paper_engine import make_task
from tests.helpers.tiny import tiny_config
from tests.helpers.tries import make_row

CPU = torch.device("cpu")
# K and V of two layers, one KV head of 16 numbers, 4 bytes each
TOKEN_BYTES = 2 * 2 * 1 * 16 * 4


def count(*, pool_bytes: int | None, free_bytes: int = 1 << 40, block_size: int = 16) -> int:
    config = EngineConfig(pool_bytes=pool_bytes, block_size=block_size, dtype="float32")
    return count_blocks(tiny_config(), config, free_bytes=free_bytes)


class TestSize:
    @pytest.mark.parametrize("block_size", [1, 7, 16])
    def test_is_what_the_operator_gave_in_whole_blocks(self, block_size: int) -> None:
        block_bytes = block_size * TOKEN_BYTES

        assert count(pool_bytes=5 * block_bytes, block_size=block_size) == 5
        assert count(pool_bytes=6 * block_bytes - 1, block_size=block_size) == 5

    def test_is_a_quarter_of_what_is_free_unless_told(self) -> None:
        assert count(pool_bytes=None, free_bytes=4 * 10 * 16 * TOKEN_BYTES) == 10

    @pytest.mark.parametrize(("pool_bytes", "free_bytes"), [(16 * TOKEN_BYTES - 1, 1 << 40), (None, 1000)])
    def test_below_one_block_is_refused_with_both_numbers(self, pool_bytes: int | None, free_bytes: int) -> None:
        got = 250 if pool_bytes is None else pool_bytes

        with pytest.raises(DeviceError, match=rf"has {got} bytes; one block of 16 tokens is {16 * TOKEN_BYTES}"):
            count(pool_bytes=pool_bytes, free_bytes=free_bytes)

    def test_the_tensors_take_the_bytes_that_were_counted(self) -> None:
        pool = KvPool(tiny_config(), num_blocks=5, block_size=16, dtype=torch.float32, device=CPU)

        assert pool.num_bytes == 5 * 16 * TOKEN_BYTES

    @pytest.mark.parametrize(("kv_dtype", "codes"), [("int8", torch.int8), ("fp8", torch.float8_e4m3fn)])
    def test_codes_and_scales_take_the_bytes_that_were_counted(
        self, kv_dtype: Literal["int8", "fp8"], codes: torch.dtype
    ) -> None:
        block_bytes = 16 * 2 * 2 * 1 * (16 + 4)  # a token: K and V, two layers, one head, 16 codes and a scale
        config = EngineConfig(pool_bytes=6 * block_bytes - 1, block_size=16, kv_dtype=kv_dtype)
        num_blocks = count_blocks(tiny_config(), config, free_bytes=1 << 40)
        pool = KvPool(tiny_config(), num_blocks=num_blocks, block_size=16, dtype=codes, device=CPU)

        assert num_blocks == 5
        assert pool.num_bytes == 5 * block_bytes

    @pytest.mark.parametrize(("device", "where"), [("cuda", "GPU"), ("cpu", "host")])
    def test_more_than_is_free_is_refused_with_both_numbers(self, device: Literal["cuda", "cpu"], where: str) -> None:
        config = EngineConfig(pool_bytes=1 << 30, device=device)

        with pytest.raises(DeviceError, match=rf"pool_bytes is 1073741824; 1000000000 bytes of the {where} are free"):
            count_blocks(tiny_config(), config, free_bytes=10**9)

    def test_free_memory_is_a_part_of_the_memory_there_is(self) -> None:
        page_bytes = 4096

        assert page_bytes < free_memory(CPU) < 1 << 50


def test_a_layer_is_a_view_of_its_own_part() -> None:
    pool = KvPool(
        tiny_config(num_heads=4, num_kv_heads=2), num_blocks=3, block_size=4, dtype=torch.bfloat16, device=CPU
    )
    for tensor in (pool.keys, pool.values):
        tensor.zero_()

    keys, values = pool.layer(1)
    assert isinstance(keys, torch.Tensor)
    assert isinstance(values, torch.Tensor)
    keys.fill_(1)
    values.fill_(2)

    assert keys.shape == values.shape == (2, 12, 16)
    assert pool.keys[0].eq(0).all()
    assert pool.values[0].eq(0).all()
    assert pool.keys[1].eq(1).all()
    assert pool.values[1].eq(2).all()


def test_a_layer_of_codes_has_its_own_scales() -> None:
    pool = KvPool(tiny_config(), num_blocks=3, block_size=4, dtype=torch.int8, device=CPU)
    assert pool.scales is not None
    for number, scales in enumerate(pool.scales):
        scales[0].fill_(10 + number)
        scales[1].fill_(20 + number)

    keys, values = pool.layer(1)

    assert isinstance(keys, QuantisedPool)
    assert isinstance(values, QuantisedPool)
    assert keys.scales.eq(20).all()
    assert values.scales.eq(21).all()


class TestSlotsBeyond32Bits:
    """A pool of 2**31 slots cannot be allocated here, but the arithmetic of its slots can be done."""

    @pytest.mark.parametrize("block_size", [16, 1024])
    def test_of_kept_tokens(self, block_size: int) -> None:
        cache = PrefixCache(num_blocks=4, block_size=block_size)
        scheduler = Scheduler(cache, step_tokens=4096)
        scheduler.add(make_task([make_row([1] * (2 * block_size))]))
        step = scheduler.next_step()
        assert step is not None
        last = np.iinfo(np.int32).max
        step.segments[0] = Segment((last - 1, last), 0, 2 * block_size)

        slots = lay_out(step, block_size).keep_slots

        first = (last - 1) * block_size
        assert first > 2**31
        assert slots.tolist() == list(range(first, first + 2 * block_size))

    @pytest.mark.parametrize("blocks", [[2**31 - 2, 2**31 - 1], [2**31 - 1, 5]])
    def test_of_keys_that_are_read(self, blocks: list[int]) -> None:
        one = np.ones(1, dtype=np.int32)
        table = SpanTable(
            positions=np.array([32], dtype=np.int32),
            query_lo=np.array([0, 0], dtype=np.int32),
            query_hi=np.array([1, 1], dtype=np.int32),
            key_lo=np.array([0, 0], dtype=np.int32),
            key_tokens=np.array([32, *one], dtype=np.int32),
            key_position=np.array([0, 32], dtype=np.int32),
            from_pool=np.array([True, False]),
            causal=np.array([False, True]),
            block_ids=np.array(blocks, dtype=np.int32),
            block_size=16,
        )

        plan = CpuPlan(table)

        expected = [block * 16 + offset for block in blocks for offset in range(16)]
        (span,) = plan.segments.full
        assert span.start == expected[0] > 2**31
        if blocks[1] == blocks[0] + 1:
            assert span.slots is None
        else:
            assert span.slots is not None
            assert span.slots.tolist() == expected
        assert plan.reach.slots == 2**31 * 16
