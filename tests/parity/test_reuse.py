"""Reuse never changes an answer: cold, warm, alone, in a batch, in chunks, after eviction, after a split."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint import Checkpoint, load_checkpoint
from engine.records import LabelReadout, Row, ScoreResult
from engine.runner import EngineThread
from tests.helpers.families import FAMILIES, tiny_model
from tests.helpers.paper_engine import check_cache
from tests.helpers.plain_model import numbers, numbers_from, plain_numbers
from tests.helpers.tiny import (
    Log,
    fill_pool,
    running,
    score,
    task_of,
    tiny_checkpoint,
    tiny_config,
    tiny_engine,
    unstarted_engine,
)
from tests.helpers.tries import RowSpec, batches

FLOAT32_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 0.05
VOCABULARY = 97
# tokens of one row that is computed anew in every step that it is in
CROWD = 160
MODELS = ["plain", *FAMILIES]


@dataclass(frozen=True)
class Judged:
    """A model, and what a whole forward pass of another program says about a row."""

    checkpoint: Checkpoint
    numbers: Callable[[Row], list[float]]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(tiny_config())


@pytest.fixture(scope="module")
def models(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """The tiny Llama, judged by a plain decoder, and one model of each family, judged by transformers."""
    plain = Judged(checkpoint, lambda row: plain_numbers(checkpoint, row))
    return {"plain": plain} | {family: _family(family, tmp_path_factory.mktemp("model")) for family in FAMILIES}


def _family(family: str, folder: Path) -> Judged:
    model = tiny_model(family)
    model.save_pretrained(folder)

    def judge(row: Row) -> list[float]:
        with torch.inference_mode():
            return numbers_from(model(torch.from_numpy(row.tokens).long()[None]).logits[0].double(), row)

    return Judged(load_checkpoint(folder, torch.float32), judge)


@pytest.fixture(scope="module")
def rounded() -> Checkpoint:
    """Weights in bfloat16, with logits around one: rounding moves them in proportion to their size."""
    whole = tiny_checkpoint(tiny_config(), dtype=torch.bfloat16)
    whole.weights.final_norm.mul_(0.125)
    return whole


def rows_of(specs: Iterable[RowSpec]) -> list[Row]:
    return [spec.row(label_ids=(3, 50, 7), vocabulary=VOCABULARY) for spec in specs]


def all_numbers(result: ScoreResult) -> list[list[float]]:
    return [numbers(row.outcome) for row in result.rows]


def assert_close(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]], tolerance: float) -> None:
    assert len(found) == len(wanted)
    for left, right in zip(found, wanted, strict=True):
        assert list(left) == pytest.approx(list(right), abs=tolerance, rel=0)


def alone(engine: EngineThread, rows: Sequence[Row]) -> list[list[float]]:
    """Every row by itself with nothing cached: in a namespace that nobody else uses."""
    return [all_numbers(score(engine, [row], namespace=f"alone {n} {id(row)}"))[0] for n, row in enumerate(rows)]


class TestFloat32:
    @settings(deadline=None, max_examples=80)
    @given(
        name=st.sampled_from(MODELS),
        tasks=batches(num_batches=4, vocabulary=VOCABULARY),
        step_tokens=st.sampled_from([16, 23, 64, 1000]),
        block_size=st.sampled_from([1, 3, 4, 16]),
        num_blocks=st.integers(1, 60),
        kernels=st.sampled_from(["cpu", "cpu", "reference"]),
    )
    def test_every_way_to_run_a_row_gives_what_a_plain_forward_pass_gives(
        self,
        models: dict[str, Judged],
        name: str,
        tasks: list[list[RowSpec]],
        step_tokens: int,
        block_size: int,
        num_blocks: int,
        kernels: str,
    ) -> None:
        """Batches run cold and then, all of them, again; small pools evict in between."""
        num_blocks = max(num_blocks, -(-40 // block_size))
        model = models[name]
        engine = tiny_engine(
            model.checkpoint, num_blocks=num_blocks, block_size=block_size, step_tokens=step_tokens, kernels=kernels
        )
        with running(engine):
            for specs in [*tasks, *tasks]:
                rows = rows_of(specs)
                wanted = [model.numbers(row) for row in rows]

                assert_close(all_numbers(score(engine, rows)), wanted, FLOAT32_TOLERANCE)
            engine.close(drain_s=0)
            check_cache(engine._cache)

    @settings(deadline=None, max_examples=20)
    @given(tasks=batches(num_batches=4, vocabulary=VOCABULARY), step_tokens=st.sampled_from([16, 1000]))
    def test_tasks_that_run_together_do_not_disturb_each_other(
        self, checkpoint: Checkpoint, tasks: list[list[RowSpec]], step_tokens: int
    ) -> None:
        with running(tiny_engine(checkpoint, step_tokens=step_tokens)) as engine:
            futures = [
                engine.submit(task_of(rows_of(specs), namespace="ab"[place % 2])) for place, specs in enumerate(tasks)
            ]
            for specs, future in zip(tasks, futures, strict=True):
                wanted = [plain_numbers(checkpoint, row) for row in rows_of(specs)]
                assert_close(all_numbers(future.result(timeout=60)), wanted, FLOAT32_TOLERANCE)

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("cut", [1, 5, 7, 8, 11])
    def test_a_split_inside_a_block_changes_nothing(self, models: dict[str, Judged], name: str, cut: int) -> None:
        model = models[name]
        whole = tuple(range(10, 22))
        specs = [
            RowSpec((*whole[:cut], 1, 2, 3), keep=cut + 3),
            RowSpec((*whole, 5), keep=13),
            RowSpec(whole, target=12),
        ]
        with running(tiny_engine(model.checkpoint, block_size=8)) as engine:
            score(engine, rows_of([RowSpec(whole, keep=12)]))

            for spec in [*specs, *specs]:
                (row,) = rows_of([spec])
                assert_close(all_numbers(score(engine, [row])), [model.numbers(row)], FLOAT32_TOLERANCE)
            engine.close(drain_s=0)
            check_cache(engine._cache)

    @pytest.mark.parametrize("name", MODELS)
    def test_b026_a_suffix_on_a_cached_prefix_stands_at_its_own_positions(
        self, models: dict[str, Judged], name: str
    ) -> None:
        model = models[name]
        rng = random.Random(0)
        tokens = [rng.randrange(VOCABULARY) for _ in range(37)]
        (row,) = rows_of([RowSpec(tuple(tokens), target=5)])
        with running(tiny_engine(model.checkpoint)) as engine:
            score(engine, rows_of([RowSpec(tuple(tokens[:32]), keep=32)]))

            result = score(engine, [row])

        assert result.rows[0].usage.cached_tokens == 32
        assert_close(all_numbers(result), [model.numbers(row)], FLOAT32_TOLERANCE)

    @pytest.mark.parametrize("name", MODELS)
    def test_after_eviction_a_row_scores_as_before(self, models: dict[str, Judged], name: str) -> None:
        model = models[name]
        log = Log()
        rng = random.Random(1)
        rows = rows_of(
            RowSpec(tuple(rng.randrange(VOCABULARY) for _ in range(30)), target, 30) for target in (0, 5, 0, 30, 0)
        )
        wanted = [model.numbers(row) for row in rows]
        with running(tiny_engine(model.checkpoint, log, num_blocks=16, block_size=4)) as engine:
            for _ in range(3):
                for row, right in zip(rows, wanted, strict=True):
                    assert_close(all_numbers(score(engine, [row])), [right], FLOAT32_TOLERANCE)

        assert sum(step.evicted_tokens for step in log.steps) > 100


class TestBatchMates:
    @pytest.mark.parametrize("size", [2, 7, 8, 33, 64])
    def test_b013_do_not_change_a_score(self, checkpoint: Checkpoint, size: int) -> None:
        rng = random.Random(size)
        fixed = RowSpec(tuple(rng.randrange(VOCABULARY) for _ in range(25)))
        mates = [
            RowSpec((*fixed.tokens[: rng.randrange(20)], *(rng.randrange(VOCABULARY) for _ in range(9))), keep=5)
            for _ in range(size - 1)
        ]
        wanted = plain_numbers(checkpoint, rows_of([fixed])[0])
        with running(tiny_engine(checkpoint, step_tokens=256)) as engine:
            for number, specs in enumerate([[fixed, *mates], [*mates, fixed], [fixed, *mates]]):
                found = all_numbers(score(engine, rows_of(specs), namespace=str(number)))
                assert found[specs.index(fixed)] == pytest.approx(wanted, abs=FLOAT32_TOLERANCE, rel=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_b013_a_batch_that_is_repeated_in_the_same_state_gives_the_same_bits(self, dtype: torch.dtype) -> None:
        model = tiny_checkpoint(tiny_config(), dtype=dtype)
        rng = random.Random(2)
        prefix = tuple(rng.randrange(VOCABULARY) for _ in range(40))
        specs = [
            RowSpec((*prefix, *(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 20)))), target, 40)
            for target in [0, 3, 0, 7] * 8
        ]
        with running(tiny_engine(model, step_tokens=200)) as engine:
            cold = [all_numbers(score(engine, rows_of(specs), namespace=name)) for name in "abc"]
            warm = [all_numbers(score(engine, rows_of(specs), namespace="a")) for _ in range(3)]

        assert cold[0] == cold[1] == cold[2]
        assert warm[0] == warm[1] == warm[2]


class TestPool:
    def test_b029_what_an_unwritten_slot_holds_changes_nothing(self, checkpoint: Checkpoint) -> None:
        """Blocks of 4 and rows of 13 leave three dead slots in every last block."""
        rng = random.Random(3)
        specs = [RowSpec(tuple(rng.randrange(VOCABULARY) for _ in range(13)), keep=13) for _ in range(6)]
        longer = [RowSpec((*spec.tokens, 1, 2), target=4) for spec in specs]
        found = []
        for value in (0.0, torch.nan, torch.inf, 1e30):
            engine = unstarted_engine(checkpoint, block_size=4)
            fill_pool(engine, value)
            engine.start()
            with running(engine):
                found.append([all_numbers(score(engine, rows_of(batch))) for batch in (specs, longer, specs)])

        assert found[0] == found[1] == found[2] == found[3]


class TestBfloat16:
    def assert_same_order(self, found: Sequence[float], wanted: Sequence[float]) -> None:
        for left, right in combinations(range(len(wanted)), 2):
            if abs(wanted[left] - wanted[right]) > 2 * BFLOAT16_TOLERANCE:
                assert (found[left] < found[right]) == (wanted[left] < wanted[right])

    @settings(deadline=None, max_examples=25)
    @given(
        tasks=batches(num_batches=3, vocabulary=VOCABULARY),
        step=st.sampled_from([(16, 0), (23, 0), (1000, 0), (1000, CROWD)]),
        num_blocks=st.integers(10, 60),
    )
    def test_label_logits_and_their_order_do_not_depend_on_how_a_row_is_run(
        self, rounded: Checkpoint, tasks: list[list[RowSpec]], step: tuple[int, int], num_blocks: int
    ) -> None:
        """Alone, or in steps of few tokens, or beside a row of so many that linear layers take another path."""
        step_tokens, beside = step
        crowd = rows_of([RowSpec((*range(VOCABULARY), *range(VOCABULARY))[:beside])] if beside else [])
        with (
            running(tiny_engine(rounded, step_tokens=1000, num_blocks=1000)) as calm,
            running(tiny_engine(rounded, step_tokens=step_tokens, num_blocks=num_blocks + beside // 4)) as busy,
        ):
            for specs in [*tasks, *tasks]:
                rows = rows_of(specs)
                wanted = alone(calm, rows)

                found = all_numbers(score(busy, [*rows, *crowd]))[: len(rows)]
                if busy.info.kernels == "cpu-amx":
                    assert found == wanted
                assert_close(found, wanted, BFLOAT16_TOLERANCE)
                labels = [n for n, row in enumerate(rows) if isinstance(row.readout, LabelReadout)]
                self.assert_same_order([found[n][0] for n in labels], [wanted[n][0] for n in labels])

    def test_scores_are_near_those_of_float32(self, rounded: Checkpoint) -> None:
        rng = random.Random(4)
        rows = rows_of(RowSpec(tuple(rng.randrange(VOCABULARY) for _ in range(30)), target) for target in (0, 9, 0))
        with running(tiny_engine(rounded)) as engine:
            found = all_numbers(score(engine, rows))

        assert_close(found, [plain_numbers(rounded, row) for row in rows], 2 * BFLOAT16_TOLERANCE)

    def test_b031_activations_beyond_the_largest_float16_give_scores(self) -> None:
        large = tiny_checkpoint(tiny_config(), dtype=torch.bfloat16)
        large.weights.embedding.mul_(1e5)
        (row,) = rows_of([RowSpec((1, 2, 3, 4, 5))])
        with running(tiny_engine(large)) as engine:
            found = all_numbers(score(engine, [row]))[0]

        wanted = plain_numbers(large, row)
        assert max(map(abs, wanted)) > 65504
        assert found == pytest.approx(wanted, rel=0.05, abs=0.01 * max(map(abs, wanted)))
