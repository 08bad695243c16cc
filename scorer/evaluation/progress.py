"""A bar that shows how far an evaluation has come, and what it has cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from scorer.evaluation.ranking_run import Tally
from scorer.evaluation.token_shares import format_shares
from scorer.scoring.batch import ScoredBatch


@contextmanager
def counting(total: int, name: str, unit: str) -> Iterator[tuple[Tally, Callable[[ScoredBatch], None]]]:
    """A tally, and what adds a batch to it while a bar shows how far it has come."""
    tally = Tally()
    with tqdm(total=total, unit=unit, desc=name) as bar:

        def count(batch: ScoredBatch) -> None:
            tally.add(batch)
            bar.set_postfix_str(format_shares(tally.usage), refresh=False)
            bar.update(len(batch.items))

        yield tally, count
