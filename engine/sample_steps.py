"""Steps without a request, to try out what runs steps."""

from __future__ import annotations

import numpy as np

from engine.batch import StepLayout
from kernels.api import SpanTable


def sample_step(num_tokens: int, *, cached: int, block_size: int, kept: int = 0) -> StepLayout:
    """Two rows of together ``num_tokens`` tokens below a prefix in the first ``cached`` slots; all are read.

    With fewer than two tokens, or with ``kept`` of them to write to the first slots, it is one row.
    """
    first = num_tokens if kept or num_tokens < 2 else num_tokens // 2
    bounds = [(0, first)] + ([(first, num_tokens)] if first < num_tokens else [])
    spans = [(low, high, low, high - low, cached, False, True) for low, high in bounds]
    if cached:
        spans.append((0, num_tokens, 0, cached, 0, True, False))
    columns = np.array(spans, dtype=np.int32).T
    rows = np.arange(num_tokens, dtype=np.int64)
    table = SpanTable(
        positions=np.concatenate([np.arange(cached, cached + high - low) for low, high in bounds]).astype(np.int32),
        query_lo=columns[0],
        query_hi=columns[1],
        key_lo=columns[2],
        key_tokens=columns[3],
        key_position=columns[4],
        from_pool=columns[5].astype(np.bool_),
        causal=columns[6].astype(np.bool_),
        block_ids=np.arange(-(-cached // block_size), dtype=np.int32),
        block_size=block_size,
    )
    return StepLayout(
        tokens=rows % 7 + cached % 5,
        spans=table,
        read_rows=rows,
        keep_rows=rows[:kept],
        keep_slots=rows[:kept],
        reads=[],
    )
