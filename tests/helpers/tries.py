"""Random batches whose rows share prefixes, and a judge of the work that they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from engine.records import LabelReadout, LikelihoodReadout, Readout, Row

Tokens = tuple[int, ...]
Prefix = tuple[str, Tokens]
"""What the KV of a token depends on: its namespace, and all tokens up to and including it."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    """A row to be: its last ``target`` positions are read, or the last one for labels if 0."""

    tokens: Tokens
    target: int = 0
    keep: int = 0

    def row(self, *, label_ids: tuple[int, ...] = (1, 2), vocabulary: int = 16) -> Row:
        readout: Readout = LabelReadout(label_ids=label_ids, log_sum_exp=self.keep % 2 == 0)
        if self.target:
            # the target is the rest of the row and one more token
            rest = [*self.tokens[len(self.tokens) - self.target + 1 :], sum(self.tokens) % vocabulary]
            readout = LikelihoodReadout(target_ids=np.array(rest, dtype=np.int32))
        return Row(tokens=np.array(self.tokens, dtype=np.int32), readout=readout, keep_tokens=self.keep)


def make_row(tokens: Sequence[int], *, target: int = 0, keep: int | None = None) -> Row:
    """A row that keeps everything unless told."""
    return RowSpec(tuple(tokens), target, len(tokens) if keep is None else keep).row()


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    num_batches: int = 3,
    max_rows: int = 6,
    max_tokens: int = 40,
    vocabulary: int = 4,
    keep_all: bool = False,
) -> list[list[RowSpec]]:
    """Batches of rows, each of which continues a prefix of an earlier row, of its own batch or another."""
    tokens = st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=max_tokens // 2)
    earlier = [tuple(draw(tokens)), tuple(draw(tokens))]
    drawn = []
    for _ in range(draw(st.integers(1, num_batches))):
        batch = []
        for _ in range(draw(st.integers(1, max_rows))):
            source = draw(st.sampled_from(earlier))
            cut = draw(st.integers(0, len(source)))
            row = (*source[:cut], *draw(tokens))[:max_tokens]
            earlier.append(row)
            target = draw(st.one_of(st.just(0), st.integers(1, len(row))))
            keep = len(row) if keep_all else draw(st.integers(0, len(row)))
            batch.append(RowSpec(row, target, keep))
        drawn.append(batch)
    return drawn


def unique_work(rows: Iterable[RowSpec], namespace: str, cached: Collection[Prefix]) -> int:
    """Positions that a task must compute: from the end of what is cached, or from where it reads, on."""
    new: set[Tokens] = set()
    for row in rows:
        length = len(row.tokens)
        known = 0
        while known < length and (namespace, row.tokens[: known + 1]) in cached:
            known += 1
        first_read = length - (row.target or 1)
        new |= {row.tokens[: position + 1] for position in range(min(known, first_read), length)}
    return len(new)
