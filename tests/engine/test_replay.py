from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

import engine.device
import engine.replay
import engine.runner
from engine.kv_pool import KvPool
from engine.model import Decoder
from engine.records import LabelOutcome
from engine.replay import RESERVED_BYTES, Recorder, StepReplays, record_steps
from engine.sample_steps import sample_step
from kernels.api import AttentionPlan, AttentionShape, IntArray, KernelSet, PoolHalf, SpanTable
from kernels.checks import check_span_table
from kernels.reference import ReferenceKernels, ReferencePlan
from tests.helpers.tiny import Log, running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

BLOCK_SIZE, NUM_BLOCKS = 4, 64
CPU = torch.device("cpu")


@dataclass
class LateLayout:
    """Remembers the table of the last step; its plan is made when attention asks for it."""

    num_queries: int
    num_ints: int = 16
    largest_span: int = 1000
    tables: list[SpanTable] = field(default_factory=list)

    def plan(self, memory: Tensor) -> AttentionPlan:
        assert memory.shape == (self.num_ints,)
        return self

    def write(self, table: SpanTable, into: IntArray) -> int | None:
        assert into.shape == (self.num_ints,)
        assert table.num_queries == self.num_queries
        if table.key_tokens.max() > self.largest_span:
            return None
        self.tables.append(table)
        return 3


class LateKernels(ReferenceKernels):
    """Stands in for a set whose launches can be recorded."""

    def __init__(self) -> None:
        self.layouts: list[LateLayout] = []

    def replay_layout(
        self,
        shapes: Collection[AttentionShape],
        dtype: torch.dtype,
        *,
        quantised: bool,
        num_queries: int,
        block_size: int,
        num_slots: int,
    ) -> LateLayout:
        self.layouts.append(LateLayout(num_queries))
        return self.layouts[-1]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_pool: PoolHalf,
        value_pool: PoolHalf,
        plan: AttentionPlan,
        shape: AttentionShape,
    ) -> Tensor:
        made = self.plan(plan.tables[-1]) if isinstance(plan, LateLayout) else plan
        assert isinstance(made, ReferencePlan)
        return super().attend(query, key, value, key_pool, value_pool, made, shape)


class Again(Recorder):
    """Runs what it recorded again."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda out: out) -> None:
        self.replayed: list[int] = []
        self.spoil = spoil

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        run()

        def replay() -> Tensor:
            out = run()
            self.replayed.append(len(out))
            return self.spoil(out)

        return replay


def record(kernels: LateKernels, recorder: Recorder, **changes: int) -> tuple[StepReplays | None, Decoder, KvPool]:
    config = tiny_config()
    decoder = Decoder(config, tiny_checkpoint(config).weights, kernels)
    pool = KvPool(config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU)
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    limits = {"step_tokens": 64, **changes}
    return record_steps(decoder, pool, kernels, recorder, block_size=BLOCK_SIZE, **limits), decoder, pool


def test_every_size_that_a_step_can_have_is_recorded_and_tried_the_largest_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernels, recorder = LateKernels(), Again()
    with caplog.at_level(logging.INFO):
        replays, _, _ = record(kernels, recorder, step_tokens=100)

    assert replays is not None
    assert replays.sizes == (16, 32, 64)
    assert [layout.num_queries for layout in kernels.layouts] == [64, 32, 16]
    assert "steps of 16, 32, 64 tokens are replayed; recorded in" in caplog.text
    assert set(recorder.replayed) == {16, 32, 64}


@torch.inference_mode()
def test_a_step_goes_to_the_smallest_size_that_holds_it_and_a_larger_one_to_none() -> None:
    recorder = Again()
    replays, _, _ = record(LateKernels(), recorder)
    assert replays is not None
    recorder.replayed.clear()

    for tokens in (1, 16, 17, 64, 65):
        hidden = replays.run(sample_step(tokens, cached=0, block_size=BLOCK_SIZE))
        assert (hidden is None) == (tokens > 64)
        assert hidden is None or len(hidden) == tokens
    assert recorder.replayed == [16, 16, 32, 64]


def test_a_step_whose_keys_have_no_room_is_left_to_be_launched() -> None:
    kernels, recorder = LateKernels(), Again()
    replays, _, _ = record(kernels, recorder)
    assert replays is not None
    recorder.replayed.clear()
    for layout in kernels.layouts:
        layout.largest_span = 30

    assert replays.run(sample_step(5, cached=31, block_size=BLOCK_SIZE)) is None
    assert recorder.replayed == []


def broken(out: Tensor) -> Tensor:
    raise ArithmeticError("the recording broke")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda out: out.roll(1, 0), "hidden states differ by"),
        (lambda out: out * 1.1, "hidden states differ by 0.1; at most 0.01 is rounding"),
        (lambda out: out * torch.nan, "hidden states differ by nan"),
        (broken, "the recording broke"),
    ],
)
def test_a_recording_that_does_something_else_is_not_used_and_its_size_is_told(
    spoil: Callable[[Tensor], Tensor], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    replays, _, _ = record(LateKernels(), Again(lambda out: spoil(out) if len(out) == 32 else out))

    assert replays is None
    assert "steps are launched kernel by kernel, for the recording of 32 tokens failed: " + words in caplog.text


def test_what_cannot_be_recorded_is_told_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    class Unable(Again):
        def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
            raise RuntimeError("operation not permitted when stream is capturing")

    replays, _, _ = record(LateKernels(), Unable())

    assert replays is None
    assert "the recording of 64 tokens failed: operation not permitted" in caplog.text


def engine_with(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, kernels: KernelSet) -> None:
    monkeypatch.setattr(engine.runner, "find_recorder", lambda _config, _device: recorder)
    monkeypatch.setattr(engine.device, "load_kernels", lambda _name, _device: kernels)


def test_the_engine_replays_small_steps_launches_large_ones_and_gives_nobody_the_spare_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    document = rng.integers(97, size=50).tolist()
    tasks = [
        [make_row(document, keep=50)],
        [make_row([*document, *rng.integers(97, size=9).tolist()]) for _ in range(3)],
        [make_row(rng.integers(97, size=150).tolist(), keep=150)],
        [make_row([*document, 5], keep=51), make_row([*document, 6, 7], target=2)],
    ]
    expected = []
    checkpoint = tiny_checkpoint(tiny_config())
    with running(tiny_engine(checkpoint, num_blocks=NUM_BLOCKS, kernels="reference", step_tokens=70)) as launched:
        assert launched.info.replayed_tokens == ()
        assert launched.info.num_blocks == NUM_BLOCKS
        expected = [score(launched, rows) for rows in tasks]
    recorder, log, kernels = Again(), Log(), LateKernels()
    engine_with(recorder, monkeypatch, kernels)
    with running(tiny_engine(checkpoint, log, num_blocks=NUM_BLOCKS, step_tokens=70)) as replayed:
        assert replayed.info.replayed_tokens == (16, 32, 64)
        assert replayed.info.num_blocks == NUM_BLOCKS - 1
        recorder.replayed.clear()
        found = [score(replayed, rows) for rows in tasks]

    for got, wanted in zip(found, expected, strict=True):
        assert got.stats.computed_tokens == wanted.stats.computed_tokens
        for one, other in zip(got.rows, wanted.rows, strict=True):
            if isinstance(other.outcome, LabelOutcome):
                assert isinstance(one.outcome, LabelOutcome)
                assert one.outcome.logits == pytest.approx(other.outcome.logits, abs=1e-4)
    sizes = [next((size for size in (16, 32, 64) if size >= step.computed_tokens), None) for step in log.steps]
    assert None in sizes
    assert recorder.replayed == [size for size in sizes if size is not None]
    spare = (NUM_BLOCKS - 1) * BLOCK_SIZE
    for layout in kernels.layouts:
        for table in layout.tables:
            check_span_table(table, num_fresh=layout.num_queries, num_slots=spare)


def test_an_engine_without_recordings_has_all_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_with(Again(lambda out: out * 2), monkeypatch, LateKernels())
    with running(tiny_engine(tiny_checkpoint(tiny_config()), num_blocks=NUM_BLOCKS)) as started:
        assert (started.info.replayed_tokens, started.info.num_blocks) == ((), NUM_BLOCKS)


def test_room_for_recordings_is_left_beside_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def free(_device: torch.device) -> int:
        return RESERVED_BYTES + 2**20

    def count(_model: object, _config: object, *, free_bytes: int) -> int:
        asked.append(free_bytes)
        return NUM_BLOCKS

    monkeypatch.setattr(engine.runner, "free_memory", free)
    monkeypatch.setattr(engine.runner, "count_blocks", count)
    checkpoint = tiny_checkpoint(tiny_config())
    with running(tiny_engine(checkpoint)):
        pass
    engine_with(Again(), monkeypatch, LateKernels())
    with running(tiny_engine(checkpoint)):
        pass

    assert asked == [RESERVED_BYTES + 2**20, 2**20]
