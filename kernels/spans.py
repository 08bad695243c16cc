"""How the spans of a step hang together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.api import SpanTable


def previous_spans(table: SpanTable) -> npt.NDArray[np.int64]:
    """For each span the one whose keys its rows see right before; -1 where there is none.

    The rows of that span hold those of the span itself.
    """
    some = np.flatnonzero(table.query_lo < table.query_hi)
    if not some.size:
        return np.full(table.num_spans, -1)
    end = table.key_position.astype(np.int64) + table.key_tokens
    # spans that end at one position have no row in common, so the last that begins by a row is the one that may hold it
    stride = table.num_queries + 1
    keys = end[some] * stride + table.query_lo[some]
    order = np.argsort(keys)
    wanted = table.key_position.astype(np.int64) * stride + table.query_lo
    found = some[order[np.searchsorted(keys[order], wanted, side="right") - 1]]
    holds = (end[found] == table.key_position) & (table.query_lo >= table.query_lo[found])
    return np.where(holds & (table.query_hi <= table.query_hi[found]), found, -1)
