"""The native dialect, answered in lines as results become known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from engine import DeadlineExceeded, Engine, EngineError, ScoreResult
from scorer.dialects.dialect import Speech
from scorer.dialects.native import chosen_items, item_result, stream_end
from scorer.dialects.schema import ScoreRequest
from scorer.errors import answer_for
from scorer.http.request_record import RequestRecord
from scorer.model_host import LoadedModel
from scorer.scoring.batch import BatchTimes, ItemFault, ScoredBatch, ScoredItem
from scorer.scoring.batch_parts import BatchPart, split_plan, summed_stats
from scorer.service import Prepared, ScoringService, engine_result, note_batch

PART_ROWS: Final = 32
"""Rows that are answered together: enough to fill a step, few enough to come soon."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Submitted:
    """A request whose parts are in the engine; parts without rows need none."""

    prepared: Prepared
    parts: list[tuple[BatchPart, Future[ScoreResult] | None]]

    def cancel(self) -> None:
        for _, future in self.parts:
            if future is not None:
                future.cancel()


async def stream_lines(
    service: ScoringService, body: bytes, speech: Speech, record: RequestRecord
) -> AsyncGenerator[bytes, None]:
    """Chunks of lines: a result each as it is known, then what all of them cost.

    With ``top_n`` the results come last, best first. An error that comes before the first result
    is raised; one that comes later is that of the pairs it hit. Closing the iterator gives up
    what the engine still holds.

    Raises:
        Refusal, EngineError: see :mod:`scorer.errors`.
    """
    with service.admitted() as model:
        submitted = await service.in_worker(lambda: _submit(service, body, speech, model, record), _Submitted.cancel)
        prepared = submitted.prepared
        request = prepared.request
        assert isinstance(request, ScoreRequest), "the native dialect asks in native terms"
        items: list[ScoredItem] = []
        results: list[ScoreResult] = []
        async with aclosing(_known_items(submitted, model.engine, results)) as parts:
            with service.counting_lost(len(prepared.plan.pairs)):
                async for known in parts:
                    items += known
                    if request.top_n is None:
                        yield _lines(known, prepared, request)
        items.sort(key=lambda item: item.index)
        if request.top_n is not None:
            yield _lines(chosen_items(items, request.top_n), prepared, request)
        batch = _whole(prepared, items, results, model, record)
        note_batch(record, batch)
        service.observe(batch)
        yield _encoded(stream_end(batch))


def _submit(
    service: ScoringService, body: bytes, speech: Speech, model: LoadedModel, record: RequestRecord
) -> _Submitted:
    """Prepare the request and hand its parts to the engine: all of them or none."""
    prepared = service.prepare(body, speech, model, record)
    submitted = _Submitted(prepared=prepared, parts=[])
    try:
        for number, part in enumerate(split_plan(prepared.plan, PART_ROWS)):
            rows = part.plan.rows
            task = prepared.task(f"{record.request_id}#{number}", rows)
            submitted.parts.append((part, model.engine.submit(task) if rows else None))
    except EngineError:
        submitted.cancel()
        raise
    return submitted


async def _known_items(
    submitted: _Submitted, engine: Engine, results: list[ScoreResult]
) -> AsyncGenerator[list[ScoredItem], None]:
    """The items of each part when it is known; ``results`` grows by what the engine said.

    Parts that need no engine come last, so that an error of the engine can still be the answer.
    """
    deadline_s = submitted.prepared.deadline_s
    waiting: dict[asyncio.Task[ScoreResult], BatchPart] = {
        asyncio.create_task(engine_result(future, engine, deadline_s)): part
        for part, future in submitted.parts
        if future is not None
    }
    try:
        pending = set(waiting)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task].first):
                yield _items_of(task, waiting[task], results)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    for part, future in submitted.parts:
        if future is None:
            yield part.items(())


def _items_of(task: asyncio.Task[ScoreResult], part: BatchPart, results: list[ScoreResult]) -> list[ScoredItem]:
    """What became of the pairs of a part that has ended.

    Raises:
        EngineError: it has no result, and no part before it had one.
    """
    try:
        result = task.result()
    except EngineError as error:
        if not results:
            raise
        return part.late_items() if isinstance(error, DeadlineExceeded) else part.failed_items(_fault_of(error))
    results.append(result)
    return part.items(result.rows)


def _fault_of(error: EngineError) -> ItemFault:
    return ItemFault(
        status="error",
        outcome="failed",
        code=answer_for(error).code,
        message=str(error),
        retryable=error.retryable,
    )


def _whole(
    prepared: Prepared, items: list[ScoredItem], results: list[ScoreResult], model: LoadedModel, record: RequestRecord
) -> ScoredBatch:
    stats = summed_stats(record.request_id, results)
    scored = stats.first_score_s is not None and any(item.score for item in items)
    return ScoredBatch(
        request_id=record.request_id,
        model=model.name,
        plan=prepared.plan,
        items=items,
        stats=stats,
        times=BatchTimes(
            tokenise_s=prepared.tokenise_s,
            queue_s=min((result.stats.queue_s for result in results), default=0.0),
            prefill_s=0.0,
            readout_s=0.0,
            ttft_s=prepared.ready_s - record.started_s + (stats.first_score_s or 0.0) if scored else None,
            total_s=record.elapsed_s(),
        ),
    )


def _lines(items: Iterable[ScoredItem], prepared: Prepared, request: ScoreRequest) -> bytes:
    return b"".join(_encoded(item_result(item, prepared.plan, request)) for item in items)


def _encoded(line: msgspec.Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"
