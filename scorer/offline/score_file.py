"""Scoring the lines of a file into a file of results: in the order of the lines, each line once.

Pairs that follow each other are scored together, up to a given number of them, so that what
their prompts share is computed once; a native batch is scored by itself. Nothing is reordered:
the results of such a group are on disk before the next group begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from engine import RowUsage, sum_usage
from scorer.dialects.error_forms import native_error
from scorer.dialects.native import native_dialect
from scorer.dialects.schema import ItemResult, ScoreRequest, ScoreResponse
from scorer.errors import Refusal, failure_of
from scorer.evaluation.token_shares import usage_of
from scorer.offline.pair_lines import InputError, InputLine, LineInfo, PairLine, read_lines
from scorer.offline.result_file import ResultFile
from scorer.scoring.batch import ScoredBatch

Score: TypeAlias = Callable[[ScoreRequest], ScoredBatch]
Result: TypeAlias = dict[str, Any]

_REPLY = native_dialect().reply
_PLACES = ("index", "query_index", "document_index", "query_id", "document_id")
"""Of a result in its batch; of a pair that has a line of its own they say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What became of the pairs so far.

    Args:
        skipped_pairs: Had a result before this run.
        done_pairs: Were given a result in this run, failed ones included.
        failed_pairs: The result is an error.
        seconds: Since this run began to score.
    """

    skipped_pairs: int = 0
    done_pairs: int = 0
    failed_pairs: int = 0
    usage: RowUsage = field(default_factory=lambda: RowUsage(prompt_tokens=0))
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Lines that are scored by one request.

    Args:
        ids: The pair lines' own ids; None if the group is one batch line.
    """

    lines: list[LineInfo]
    ids: list[str | int | None] | None
    request: ScoreRequest

    @property
    def num_pairs(self) -> int:
        return sum(line.num_pairs for line in self.lines)


def score_lines(
    path: Path,
    lines: Sequence[LineInfo],
    results: ResultFile,
    score: Score,
    *,
    batch_pairs: int,
    max_document_tokens: int | None,
    on_progress: Callable[[Totals], None],
) -> Totals:
    """Score every line of ``path`` that has no result yet.

    A pair that cannot be scored, or a batch that is refused, has an error as its result, and
    the others go on.

    Args:
        lines: What ``scan_lines`` found in ``path``.
        max_document_tokens: Longest document; a batch that states its own keeps that.
        on_progress: Told at the start and after every group.

    Raises:
        InputError: a line that has a result is no longer the line that was scored.
        EngineError: the engine failed; what was written stays.
    """
    _check_unchanged(path, lines, results)
    pending = {line.number: line for line in lines if line.number not in results.done}
    skipped = sum(line.num_pairs for line in lines if line.number in results.done)
    totals = Totals(skipped_pairs=skipped)
    on_progress(totals)
    started = time.monotonic()
    wanted = ((pending[number], line) for number, line in read_lines(path) if number in pending)
    for group in _groups(wanted, batch_pairs, max_document_tokens):
        written, failed_pairs, usage = _score_group(group, score)
        results.append(written)
        totals = Totals(
            skipped_pairs=skipped,
            done_pairs=totals.done_pairs + group.num_pairs,
            failed_pairs=totals.failed_pairs + failed_pairs,
            usage=sum_usage([totals.usage, usage]),
            seconds=time.monotonic() - started,
        )
        on_progress(totals)
    return totals


def _check_unchanged(path: Path, lines: Sequence[LineInfo], results: ResultFile) -> None:
    now = {line.number: line.sha256 for line in lines}
    for number, then in results.done.items():
        if now.get(number) != then:
            raise InputError(
                f"{path}:{number} is not the line whose result is in the file of results; name another file for results"
            )


def _groups(
    lines: Iterable[tuple[LineInfo, InputLine]], batch_pairs: int, max_document_tokens: int | None
) -> Iterator[_Group]:
    pairs: list[tuple[LineInfo, PairLine]] = []
    for info, line in lines:
        if isinstance(line, PairLine):
            pairs.append((info, line))
            if len(pairs) < batch_pairs:
                continue
        if pairs:
            yield _pair_group(pairs, max_document_tokens)
            pairs = []
        if isinstance(line, ScoreRequest):
            if line.max_tokens_per_doc is None:
                line = msgspec.structs.replace(line, max_tokens_per_doc=max_document_tokens)  # noqa: PLW2901
            yield _Group(lines=[info], ids=None, request=line)
    if pairs:
        yield _pair_group(pairs, max_document_tokens)


def _pair_group(pairs: Sequence[tuple[LineInfo, PairLine]], max_document_tokens: int | None) -> _Group:
    """One request for all pairs, in which every text stands once."""
    query_at: dict[str, int] = {}
    document_at: dict[str, int] = {}
    places = [
        (query_at.setdefault(pair.query, len(query_at)), document_at.setdefault(pair.document, len(document_at)))
        for _, pair in pairs
    ]
    request = ScoreRequest(
        queries=list(query_at), documents=list(document_at), pairs=places, max_tokens_per_doc=max_document_tokens
    )
    return _Group(lines=[info for info, _ in pairs], ids=[pair.id for _, pair in pairs], request=request)


def _score_group(group: _Group, score: Score) -> tuple[list[Result], int, RowUsage]:
    """The result lines, how many pairs of them failed, and where their tokens came from."""
    try:
        batch = score(group.request)
    except Refusal as refusal:
        if group.ids is not None:
            raise  # the request is of our making, so it is not these pairs that are wrong
        wire = native_error(failure_of(refusal, request_id=group.request.request_id or ""))
        result = _name(group.lines[0]) | {"status": "error"} | msgspec.to_builtins(wire.body)
        return [result], group.num_pairs, RowUsage(prompt_tokens=0)
    reply = _REPLY(group.request, batch)
    assert isinstance(reply, ScoreResponse), "the native dialect answers in the native form"
    if group.ids is None:
        written = [_name(group.lines[0]) | msgspec.to_builtins(reply)]
    else:
        written = [
            _name(line) | ({} if own_id is None else {"id": own_id}) | _own_result(item)
            for line, own_id, item in zip(group.lines, group.ids, reply.results, strict=True)
        ]
    return written, sum(item.score is None for item in batch.items), usage_of(batch)


def _name(line: LineInfo) -> Result:
    return {"line": line.number, "input_sha256": line.sha256}


def _own_result(item: ItemResult) -> Result:
    result: Result = msgspec.to_builtins(item)
    return {name: value for name, value in result.items() if name not in _PLACES}
