from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import ExtendBatch, lay_out, on_device, to_device
from engine.prefix_tree import Segment
from engine.scheduler import Step
from kernels.checks import check_span_table
from tests.helpers.paper_engine import PaperEngine
from tests.helpers.tries import RowSpec, batches, make_row

CPU = torch.device("cpu")


def next_batch(engine: PaperEngine) -> tuple[Step, ExtendBatch]:
    step = engine.scheduler.next_step()
    assert step is not None
    return step, on_device(lay_out(step, engine.cache.block_size), CPU)


def spans(batch: ExtendBatch) -> set[tuple[int, int, int, int, int, bool, bool]]:
    """Queries, first key, number of keys, position of the first, whether in the pool, whether causal."""
    table = batch.spans
    return {
        (
            int(table.query_lo[span]),
            int(table.query_hi[span]),
            int(table.key_lo[span]),
            int(table.key_tokens[span]),
            int(table.key_position[span]),
            bool(table.from_pool[span]),
            bool(table.causal[span]),
        )
        for span in range(table.num_spans)
    }


@settings(deadline=None, max_examples=150)
@given(
    tasks=batches(num_batches=4, max_rows=6, max_tokens=24),
    block_size=st.sampled_from([1, 2, 3, 4, 7, 16]),
    num_blocks=st.integers(3, 40),
    step_tokens=st.sampled_from([16, 21, 1000]),
)
def test_every_query_sees_its_own_prefix_exactly_once_and_nothing_else(
    tasks: list[list[RowSpec]], block_size: int, num_blocks: int, step_tokens: int
) -> None:
    """The decoder on paper checks every key of every query, in pools with and without room."""
    num_blocks = max(num_blocks, -(-24 // block_size))
    engine = PaperEngine(num_blocks=num_blocks, block_size=block_size, step_tokens=step_tokens)
    for place, specs in enumerate(tasks):
        engine.run([spec.row() for spec in specs], namespace="ab"[place % 2])

    assert engine.decoder.computed


@settings(deadline=None, max_examples=50)
@given(tasks=batches(num_batches=2, max_rows=6, max_tokens=24))
def test_the_tables_keep_the_contract_of_the_kernels(tasks: list[list[RowSpec]]) -> None:
    engine = PaperEngine(num_blocks=100, block_size=4)
    engine.run([spec.row() for spec in tasks[0]])
    engine.add([spec.row() for spec in tasks[-1]])

    _, batch = next_batch(engine)

    for table in (batch.spans, batch.read_spans):
        check_span_table(table, num_fresh=len(batch.tokens), num_slots=400)
        for column in (table.positions, table.query_lo, table.key_lo, table.key_tokens, table.block_ids):
            assert column.dtype == np.int32
    for tensor in (batch.tokens, batch.positions, batch.read_rows, batch.keep_rows, batch.keep_slots):
        assert tensor.dtype == torch.int64
    assert batch.spans.num_queries == len(batch.tokens)
    assert batch.read_spans.num_queries == len(batch.read_rows)


def test_a_shared_prefix_is_one_span_for_all_rows_below_it() -> None:
    engine = PaperEngine(step_tokens=1000)
    engine.add([make_row([*[1] * 10, token, token]) for token in (2, 3, 4)])

    _, batch = next_batch(engine)

    prefix = (10, 16, 0, 10, 0, False, False)
    own = {(0, 10, 0, 10, 0, False, True), *((low, low + 2, low, 2, 10, False, True) for low in (10, 12, 14))}
    assert spans(batch) == {prefix, *own}
    assert batch.tokens.tolist() == [*[1] * 10, 2, 2, 3, 3, 4, 4]
    assert batch.positions.tolist() == [*range(10), 10, 11, 10, 11, 10, 11]


def test_a_cached_prefix_in_neighbouring_blocks_is_one_span_however_often_it_was_split() -> None:
    engine = PaperEngine(block_size=4, step_tokens=1000)
    engine.run([make_row([1] * 20)])
    for cut in (3, 8, 13):
        engine.run([make_row([*[1] * cut, 2])])
    engine.add([make_row([*[1] * 20, 5])])

    _, batch = next_batch(engine)

    assert spans(batch) == {(0, 1, 0, 20, 0, True, False), (0, 1, 0, 1, 20, False, True)}
    assert batch.spans.block_ids.tolist() == [0, 1, 2, 3, 4]


def test_a_path_that_continues_elsewhere_in_the_pool_is_several_spans() -> None:
    engine = PaperEngine(block_size=4, step_tokens=1000)
    engine.run([make_row([1] * 6)])
    engine.run([make_row([1, 1, 2, 2])])
    engine.add([make_row([1, 1, 2, 2, 3])])

    _, batch = next_batch(engine)

    pool = {(length, position) for _, _, _, length, position, from_pool, _ in spans(batch) if from_pool}
    assert pool == {(2, 0), (2, 2)}


def test_a_full_hit_reads_the_cache_before_its_last_position_and_computes_that() -> None:
    engine = PaperEngine(block_size=4)
    engine.run([make_row([1, 2, 3, 4, 5])])
    engine.add([make_row([1, 2, 3, 4, 5])])

    step, batch = next_batch(engine)

    assert spans(batch) == {(0, 1, 0, 4, 0, True, False), (0, 1, 0, 1, 4, False, True)}
    assert not step.growths
    assert len(batch.keep_slots) == 0


def test_only_what_is_read_goes_through_the_last_layer() -> None:
    engine = PaperEngine(step_tokens=1000)
    engine.add([make_row([1, 2, 3, 4]), make_row([1, 2, 3, 5], target=3), make_row([1, 2, 3, 5])])

    _, batch = next_batch(engine)

    # positions 1 and 2 are read by the target alone, position 3 of [1 2 3 5] by two rows
    assert batch.read_rows.tolist() == [1, 2, 3, 4]
    assert [read.places for read in batch.reads] == [[2], [0, 1, 3], [3]]


def test_a_chunk_that_ends_before_the_readout_reads_nothing() -> None:
    engine = PaperEngine(step_tokens=16)
    engine.add([make_row([1] * 20)])

    _, batch = next_batch(engine)

    assert len(batch.read_rows) == 0
    assert batch.reads == []
    assert batch.read_spans.num_spans == 0


def test_columns_keep_their_shape_on_a_device_that_gets_them_as_one() -> None:
    shapes = [(3,), (2, 5), (0,), (4, 1)]

    taken = to_device([np.zeros(shape, dtype=np.int64) for shape in shapes], torch.device("meta"))

    assert [tuple(column.shape) for column in taken] == shapes
    assert all(column.storage_offset() % 2 == 0 for column in taken)  # 16 bytes


class TestSegment:
    @pytest.mark.parametrize("offset", range(4))
    def test_a_part_names_the_slots_of_its_tokens_and_no_block_too_many(self, offset: int) -> None:
        whole = Segment((9, 2, 7, 4), offset, 16 - offset)
        slots = [block * 4 + place for block in whole.block_ids for place in range(4)][offset:]

        for start in range(whole.length):
            for stop in range(start + 1, whole.length + 1):
                part = whole.part(start, stop, 4)

                own = [block * 4 + place for block in part.block_ids for place in range(4)][part.offset :]
                assert own[: part.length] == slots[start:stop]
                assert part.offset < 4
                assert len(part.block_ids) == -(-(part.offset + part.length) // 4)
                assert part.end_offset(4) == slots[stop - 1] % 4 + 1
