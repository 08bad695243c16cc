"""Steps made longer, so that steps of many sizes have one shape.

The rows that are added are a chain of their own: one row of token 0 that begins at position 0 and sees
nothing but itself. So they are computed like all others, whatever ran before in the same memory, and no
row of the step sees them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.batch import SlotArray, StepLayout
from kernels.api import SpanTable


def padded(step: StepLayout, num_tokens: int, *, spare_slot: int) -> StepLayout:
    """``step`` with ``num_tokens`` of everything that is counted in tokens.

    Args:
        num_tokens: At least as many as the step has.
        spare_slot: Where keys and values go that are kept for nobody: those of the first row, again and again.
    """
    return StepLayout(
        tokens=_filled(step.tokens, num_tokens, 0),
        spans=padded_spans(step.spans, num_tokens),
        read_rows=_filled(step.read_rows, num_tokens, 0),
        keep_rows=_filled(step.keep_rows, num_tokens, 0),
        keep_slots=_filled(step.keep_slots, num_tokens, spare_slot),
        reads=step.reads,
    )


def padded_spans(table: SpanTable, num_queries: int) -> SpanTable:
    """``table``, all rows of a step, with a chain of rows behind them up to ``num_queries``."""
    first = table.num_queries
    added = num_queries - first
    if not added:
        return table

    def column(of_step: npt.NDArray[np.int32], value: int) -> npt.NDArray[np.int32]:
        return np.append(of_step, np.int32(value))

    return replace(
        table,
        positions=np.concatenate([table.positions, np.arange(added, dtype=np.int32)]),
        query_lo=column(table.query_lo, first),
        query_hi=column(table.query_hi, num_queries),
        key_lo=column(table.key_lo, first),
        key_tokens=column(table.key_tokens, added),
        key_position=column(table.key_position, 0),
        from_pool=np.append(table.from_pool, np.False_),
        causal=np.append(table.causal, np.True_),
    )


def _filled(column: SlotArray, length: int, value: int) -> SlotArray:
    return np.concatenate([column, np.full(length - len(column), value, dtype=np.int64)])
