"""The one use case: a body in, scores out, in whichever dialect was spoken."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from engine import DeadlineExceeded, Engine, EngineClosed, EngineError, Row, ScoreResult, ScoreTask
from scorer.dialects.dialect import Speech, WireReply
from scorer.dialects.reply_headers import batch_headers
from scorer.errors import InvalidValue, Refusal
from scorer.http.admission import Admission
from scorer.http.request_record import RequestRecord
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel, ModelHost
from scorer.scoring.batch import BatchPlan, ScoredBatch
from scorer.scoring.batch_results import scored_batch
from scorer.scoring.request_plan import InternalRequest, num_characters, plan_request

R = TypeVar("R")
V = TypeVar("V")

_WATCH_S = 0.25
"""How often a wait looks whether the engine is still there."""

NUM_WORKERS = 4
"""Requests that are decoded and tokenised at one time; the tokenizer has threads of its own."""

_MAX_NUMBERS_AT_ONCE = 96
"""Up to 32 pairs of two labels: made into an answer where it is sent, since that takes less than to reach a thread."""

_GRACE_S = 5.0
"""A step that is running when the deadline passes is let finish; past this it counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An encoded answer and what its headers say."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A request that is understood and tokenised; nothing of it is in the engine yet.

    Args:
        request: What the dialect's request asks for.
        write: The wire form of the answer, in the dialect that was spoken.
        num_characters: Of all texts of the request.
        is_short: Whether its answer may be made on the event loop.
        partial: Whether an answer may lack pairs; otherwise one that lacks some costs nothing.
        ready_s: ``time.monotonic()`` when it was tokenised.
    """

    request: InternalRequest
    write: Callable[[ScoredBatch], WireReply]
    plan: BatchPlan
    num_characters: int
    is_short: bool
    partial: bool
    namespace: str
    deadline_s: float
    tokenise_s: float
    ready_s: float

    def task(self, task_id: str, rows: tuple[Row, ...]) -> ScoreTask:
        """Some or all rows of the plan as the engine takes them."""
        return ScoreTask(task_id=task_id, namespace=self.namespace, rows=rows, deadline_s=self.deadline_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Started:
    """A request that is in the engine, or that needs none: then ``future`` is None."""

    prepared: Prepared
    future: Future[ScoreResult] | None


class ScoringService:
    """Scores batches. Belongs to the event loop; what takes processor time runs in threads."""

    def __init__(
        self, *, host: ModelHost, admission: Admission, metrics: Metrics, max_pairs: int, request_timeout_s: float
    ) -> None:
        self._host = host
        self._admission = admission
        self._metrics = metrics
        self._max_pairs = max_pairs
        self._request_timeout_s = request_timeout_s
        self._workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="tokenise")

    def close(self) -> None:
        """Let the worker threads end."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def admitted(self) -> Iterator[LoadedModel]:
        """The model, and a place among the requests under way for as long as the block lasts.

        Raises:
            NotReady: there is no model that takes requests.
            Overloaded: all places are taken.
        """
        model = self._host.require()
        with self._admission.request():
            yield model

    async def score(self, body: bytes, speech: Speech, record: RequestRecord) -> Reply:
        """The encoded answer to ``body``. Cancelling it gives up what the engine holds for it.

        Raises:
            Refusal, EngineError: see :mod:`scorer.errors`.
        """
        with self.admitted() as model:
            started = await self.in_worker(lambda: self._start(body, speech, model, record), _give_up)
            prepared = started.prepared
            result = None
            if started.future is not None:
                with self.counting_lost(len(prepared.plan.pairs)):
                    result = await engine_result(started.future, model.engine, prepared.deadline_s)
            finished_s = time.monotonic()
            if prepared.is_short:
                batch, reply = _answer(prepared, result, model, record)
            else:
                batch, reply = await asyncio.to_thread(_answer, prepared, result, model, record)
        self._observe_stages(batch, respond_s=time.monotonic() - finished_s)
        if isinstance(reply, Exception):
            raise reply
        return reply

    @contextmanager
    def counting_lost(self, num_pairs: int) -> Iterator[None]:
        """Count the pairs of a request that the block leaves without an answer."""
        try:
            yield
        except EngineError as error:
            self._metrics.count_items("deadline" if isinstance(error, DeadlineExceeded) else "failed", num_pairs)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._metrics.count_items("failed", num_pairs)
            raise

    async def in_worker(self, work: Callable[[], V], give_up: Callable[[V], None]) -> V:
        """What ``work`` gives, done in a worker thread.

        Args:
            give_up: Called with the result if this is cancelled while the work is under way: it
                cannot be stopped then, but what it brought about can be undone.
        """
        future = self._workers.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(partial(_undo, give_up))
            raise

    def _start(self, body: bytes, speech: Speech, model: LoadedModel, record: RequestRecord) -> _Started:
        prepared = self.prepare(body, speech, model, record)
        rows = prepared.plan.rows if prepared.partial or prepared.plan.is_complete else ()
        future = model.engine.submit(prepared.task(record.request_id, rows)) if rows else None
        return _Started(prepared=prepared, future=future)

    def prepare(self, body: bytes, speech: Speech, model: LoadedModel, record: RequestRecord) -> Prepared:
        """Decode and tokenise; takes processor time.

        Raises:
            Refusal: the body is wrong, or asks for what cannot be served.
        """
        dialect = speech.choose(body)
        record.error_form = dialect.error_form
        spoken = dialect.decode(body)
        request = dialect.to_request(spoken)
        record.request_id = request.request_id or record.request_id
        deadline_s = record.started_s + time_allowed_s(request.deadline_ms, self._request_timeout_s)
        began_s = time.monotonic()
        plan = plan_request(request, model, max_pairs=self._max_pairs)
        ready_s = time.monotonic()
        return Prepared(
            request=request,
            write=lambda batch: dialect.reply(spoken, batch),
            plan=plan,
            num_characters=num_characters(request),
            is_short=plan.num_numbers <= _MAX_NUMBERS_AT_ONCE,
            partial=dialect.partial,
            namespace=model.namespace_for(record.tenant, dialect.salt(spoken)),
            deadline_s=deadline_s,
            tokenise_s=ready_s - began_s,
            ready_s=ready_s,
        )

    def observe(self, batch: ScoredBatch) -> None:
        """Count the pairs of an answered batch, and the times that are known of each."""
        metrics, times = self._metrics, batch.times
        faults = batch.faults
        metrics.count_items("ok", len(batch.items) - len(faults))
        for outcome, count in Counter(fault.outcome for fault in faults).items():
            metrics.count_items(outcome, count)
        if times.ttft_s is None:
            return
        metrics.observe_ttft(times.ttft_s)
        metrics.observe_stage("tokenise", times.tokenise_s)
        metrics.observe_stage("queue", times.queue_s)

    def _observe_stages(self, batch: ScoredBatch, *, respond_s: float) -> None:
        """As ``observe``, with the times of a batch that was one task of the engine."""
        self.observe(batch)
        if batch.times.ttft_s is None:
            return
        self._metrics.observe_stage("prefill", batch.times.prefill_s)
        self._metrics.observe_stage("readout", batch.times.readout_s)
        self._metrics.observe_stage("respond", respond_s)


def time_allowed_s(deadline_ms: int | None, request_timeout_s: float) -> float:
    """How long a request may take from its arrival.

    Raises:
        InvalidValue: it asks for more than any request may take.
    """
    if deadline_ms is None:
        return request_timeout_s
    limit_ms = int(request_timeout_s * 1000)
    if deadline_ms > limit_ms:
        raise InvalidValue(
            f"deadline_ms is {deadline_ms}, the limit is {limit_ms}",
            field="deadline_ms",
            value=deadline_ms,
            limit=limit_ms,
        )
    return deadline_ms / 1000


async def engine_result(future: Future[R], engine: Engine, deadline_s: float) -> R:
    """Wait for the engine; never for ever. Cancelling it cancels the task.

    Raises:
        EngineError: the task ended without a result, the engine died, or a step hangs.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wake(_: Future[R]) -> None:
        with suppress(RuntimeError):  # a step that hung may end after the loop is closed
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(wake)
    try:
        while not future.done():
            try:
                async with asyncio.timeout(_WATCH_S):
                    await ended.wait()
            except TimeoutError:
                _check_progress(engine, deadline_s)
        return future.result()
    finally:
        future.cancel()  # no effect once it is done


def _check_progress(engine: Engine, deadline_s: float) -> None:
    """Check that there is something to wait for.

    Raises:
        EngineClosed: the engine died.
        DeadlineExceeded: a step hangs.
    """
    if not engine.health().alive:
        raise EngineClosed("the engine has stopped")
    if time.monotonic() > deadline_s + _GRACE_S:
        raise DeadlineExceeded("the deadline passed and the step that was running did not end")


def note_batch(record: RequestRecord, batch: ScoredBatch) -> None:
    """Write down what an answered batch was and cost."""
    usage = batch.usage
    record.num_pairs = len(batch.items)
    record.prompt_tokens = usage.prompt_tokens
    record.cached_tokens = usage.cached_tokens
    record.computed_tokens = usage.computed_tokens
    record.outcome = batch.outcome


def _give_up(started: _Started) -> None:
    if started.future is not None:
        started.future.cancel()


def _undo(give_up: Callable[[V], None], work: Future[V]) -> None:
    if not work.cancelled() and work.exception() is None:
        give_up(work.result())


def _answer(
    prepared: Prepared, result: ScoreResult | None, model: LoadedModel, record: RequestRecord
) -> tuple[ScoredBatch, Reply | Exception]:
    """What became of the pairs, and the encoded answer or the refusal that the dialect makes of it."""
    batch = scored_batch(
        prepared.plan,
        result,
        request_id=record.request_id,
        model_name=model.name,
        tokenise_s=prepared.tokenise_s,
        before_engine_s=prepared.ready_s - record.started_s,
        total_s=record.elapsed_s(),
    )
    note_batch(record, batch)
    try:
        body = msgspec.json.encode(prepared.write(batch))
    except (Refusal, EngineError) as error:
        return batch, error
    return batch, Reply(body=body, headers=batch_headers(batch, num_characters=prepared.num_characters))
