"""The engine thread: tasks in, futures out; every task ends exactly once."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from engine.api import EngineObserver
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.config import EngineConfig
from engine.cuda_graphs import find_recorder
from engine.device import find_device, find_kernels, model_dtype, move_weights, pool_dtype
from engine.device_loss import DeviceLost
from engine.errors import (
    DeadlineExceeded,
    EngineClosed,
    EngineError,
    EngineFault,
    InvalidTask,
    OutOfCapacity,
)
from engine.generation import GenerationState
from engine.host import available_processors, release_freed_memory
from engine.kv_pool import KvPool, count_blocks, free_memory
from engine.model import Decoder
from engine.prefix_cache import PrefixCache
from engine.records import (
    EngineHealth,
    EngineInfo,
    EngineSnapshot,
    GenerateResult,
    GenerateTask,
    ScoreResult,
    ScoreTask,
    TaskEnd,
)
from engine.replay import RESERVED_BYTES, record_steps
from engine.row_order import order_rows
from engine.scheduler import Scheduler
from engine.sequence import TaskState
from engine.step import StepFailed, StepRunner
from engine.task_checks import check_generation, check_row
from engine.warm_up import warm_up
from kernels.api import ReplayableKernels

_LOG = logging.getLogger(__name__)
_RETRY_LIMIT_S = 60.0


class EngineThread:
    """Implements :class:`engine.api.Engine` with one thread that owns tree, pool and model.

    A task that is submitted is counted at once, in unique tokens of its own, so that a full
    queue refuses it before it waits. The thread notices a cancelled future or a passed
    deadline between two steps.
    """

    def __init__(
        self,
        *,
        info: EngineInfo,
        cache: PrefixCache,
        scheduler: Scheduler,
        steps: StepRunner,
        observer: EngineObserver,
    ) -> None:
        self._info = info
        self._cache = cache
        self._scheduler = scheduler
        self._steps = steps
        self._observer = observer
        self._serials = itertools.count()
        self._wake = threading.Condition()
        self._inbox: deque[TaskState] = deque()  # guarded by _wake, as are the next six
        self._taken_in: Sequence[TaskState] = ()  # by the scheduler, since the snapshot was taken
        self._unended: dict[int, TaskState] = {}  # by serial number: submitted, and its future has no end yet
        self._waiting_tokens = 0
        self._closing_at: float | None = None
        self._died: BaseException | None = None
        self._snapshot = self._take_snapshot()
        self._tokens_per_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        """See :meth:`engine.api.Engine.submit`. Sorting the rows is done here, on the caller's thread."""
        for index, row in enumerate(task.rows):
            check_row(row, index, self._info)
        if not task.rows:
            raise InvalidTask("a task has no rows; at least 1 is needed")
        future: Future[ScoreResult] = Future()
        self._enqueue(TaskState(task, next(self._serials), future, order_rows([row.tokens for row in task.rows])))
        return future

    def generate(self, task: GenerateTask) -> Future[GenerateResult]:
        """See :meth:`engine.api.Engine.generate`."""
        check_generation(task, self._info)
        future: Future[GenerateResult] = Future()
        self._enqueue(GenerationState.begin(task, next(self._serials), future))
        return future

    def _enqueue(self, state: TaskState) -> None:
        with self._wake:
            self._admit(state.admitted_tokens)
            self._waiting_tokens += state.admitted_tokens
            self._unended[state.serial] = state
            self._inbox.append(state)
            self._wake.notify()

    def _admit(self, tokens: int) -> None:
        if self._died is not None or self._closing_at is not None:
            raise EngineClosed("the engine has stopped" if self._died is not None else "the engine is draining")
        limit = self._info.max_queued_tokens
        if self._unended and self._waiting_tokens + tokens > limit:
            waiting = self._waiting_tokens
            wait_s = waiting / self._tokens_per_s if self._tokens_per_s else 1.0
            raise OutOfCapacity(
                f"the queue holds {waiting} tokens and {tokens} more exceed its limit of {limit}",
                retry_after_s=min(_RETRY_LIMIT_S, max(1.0, math.ceil(wait_s))),
            )

    def health(self) -> EngineHealth:
        with self._wake:
            alive = self._died is None and self._thread.is_alive()
            accepting = alive and self._closing_at is None
            reason = "" if accepting else "draining" if alive else f"stopped: {self._died}" if self._died else "stopped"
            arrived = [*self._taken_in, *self._inbox]
            snapshot = replace(
                self._snapshot,
                queued_tasks=self._snapshot.queued_tasks + len(arrived),
                queued_tokens=self._snapshot.queued_tokens + sum(task.queued_tokens for task in arrived),
            )
            return EngineHealth(alive=alive, accepting=accepting, reason=reason, snapshot=snapshot)

    def close(self, *, drain_s: float) -> None:
        """See :meth:`engine.api.Engine.close`; returns when the thread has ended."""
        with self._wake:
            self._closing_at = time.monotonic() + drain_s
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._end_all()

    # everything below runs on the engine thread

    @torch.inference_mode()  # once, since to enter it takes as long as a few operations
    def _run(self) -> None:
        try:
            while self._take_in():
                self._drop_ended()
                self._step()
                self._renew_snapshot()
        except BaseException as error:  # noqa: BLE001  whatever it is, nobody may wait for a dead thread
            _LOG.exception("the engine thread died")
            with self._wake:
                self._died = error
        self._end_all()
        self._renew_snapshot()

    def _take_in(self) -> bool:
        """Wait for work and hand it to the scheduler; False when it is time to stop."""
        with self._wake:
            while not self._inbox and not self._scheduler.num_tasks and self._closing_at is None:
                self._wake.wait()
            arrived = self._taken_in = self._inbox
            self._inbox = deque()
            closing_at = self._closing_at
        for task in arrived:
            self._scheduler.add(task)
        if closing_at is None:
            return True
        return self._scheduler.num_tasks > 0 and time.monotonic() < closing_at

    def _drop_ended(self) -> None:
        now = time.monotonic()
        for task in self._scheduler.tasks():
            if task.future.cancelled():
                self._end(task, "cancelled")
            elif task.task.deadline_s is not None and now >= task.task.deadline_s:
                if task.has_output:
                    self._end(task, "partial")
                else:
                    self._end(task, "deadline", DeadlineExceeded("the deadline passed before a row was scored"))

    def _step(self) -> None:
        started = time.monotonic()
        try:
            done = self._steps.run()
        except StepFailed as failure:
            _LOG.exception("a step failed")
            fault = EngineFault(f"the step that held this task failed: {failure.__cause__}")
            fault.__cause__ = failure.__cause__
            for task in failure.step.tasks:
                self._end(task, "fault", fault)
            if failure.device_lost:
                raise DeviceLost(f"the device is lost: {failure.__cause__}") from failure.__cause__
            return
        if done is None:
            return
        step, stats = done
        now = time.monotonic()
        rate = stats.computed_tokens / max(now - started, 1e-6)
        self._tokens_per_s = rate if not self._tokens_per_s else 0.8 * self._tokens_per_s + 0.2 * rate
        for task in step.tasks:
            task.first_step_s = task.first_step_s or started
            if task.first_score_s is None and task.has_output:
                task.first_score_s = now
        self._observer.on_step(stats)
        for task in step.tasks:
            if task.finished:
                self._go_on(task)

    def _go_on(self, task: TaskState) -> None:
        """End a task whose rows are done, unless more follows from them."""
        try:
            goes_on = task.go_on()
        except Exception as error:  # noqa: BLE001  whatever it is, it concerns this task alone
            _LOG.exception("a listener failed")
            fault = EngineFault(f"what listens to this task failed: {error}")
            fault.__cause__ = error
            self._end(task, "fault", fault)
        else:
            if not goes_on:
                self._end(task, "ok")

    def _end(self, task: TaskState, end: TaskEnd, error: EngineError | None = None) -> None:
        self._scheduler.remove(task)
        answer = error or (task.result(end) if end != "cancelled" else None)
        end = self._settle(task, end, answer)
        if isinstance(answer, ScoreResult | GenerateResult) and answer.stats.end == end:
            self._observer.on_task(answer.stats)
        else:
            self._observer.on_task(task.stats(end))

    def _settle(
        self, task: TaskState, end: TaskEnd, answer: ScoreResult | GenerateResult | EngineError | None
    ) -> TaskEnd:
        """Give the future its one end and return it; a future that was cancelled meanwhile keeps that end."""
        with self._wake:
            del self._unended[task.serial]
            self._waiting_tokens -= task.admitted_tokens
        try:
            if isinstance(answer, EngineError):
                task.future.set_exception(answer)
            elif answer is not None:
                task.future.set_result(answer)
        except InvalidStateError:
            end = "cancelled"
        if end == "cancelled":
            task.future.set_running_or_notify_cancel()  # or those who wait on several futures wait for ever
        return end

    def _end_all(self) -> None:
        """End what is left. Nobody may wait for a dead thread, so the futures come before all that might raise."""
        with self._wake:
            if self._closing_at is None:
                self._closing_at = time.monotonic()
            self._inbox.clear()
            left = list(self._unended.values())
        cause = f": {self._died}" if self._died is not None else ""
        closed = EngineClosed(f"the engine stopped before this task was finished{cause}")
        ends = [self._settle(task, "closed", closed) for task in left]
        try:
            for task in self._scheduler.tasks():
                self._scheduler.remove(task)
            for task, end in zip(left, ends, strict=True):
                self._observer.on_task(task.stats(end))
        except Exception:  # noqa: BLE001  as above
            _LOG.exception("the engine thread could not put its things in order")

    def _renew_snapshot(self) -> None:
        snapshot = self._take_snapshot()
        with self._wake:
            self._snapshot, self._taken_in = snapshot, ()

    def _take_snapshot(self) -> EngineSnapshot:
        cache = self._cache
        pinned, free = cache.num_pinned(), cache.num_free
        return EngineSnapshot(
            num_blocks=cache.num_blocks,
            free_blocks=free,
            cached_blocks=cache.num_blocks - free - pinned,
            pinned_blocks=pinned,
            cached_tokens=cache.cached_tokens,
            num_nodes=cache.num_nodes,
            queued_tasks=self._scheduler.num_tasks,
            queued_tokens=self._scheduler.queued_tokens,
        )


def start_engine(
    checkpoint: Path, config: EngineConfig, observer: EngineObserver, *, adapter: Path | None = None
) -> EngineThread:
    """Load the model, with the LoRA adapter in the folder ``adapter`` if one is given, and start the engine's thread.

    Raises:
        CheckpointError: the model or its adapter cannot be loaded.
        DeviceError: the device is missing or too old, or its memory too small.
    """
    torch.set_num_threads(config.num_threads or available_processors())
    find_device(config)

    def build() -> EngineThread:
        return build_engine(load_checkpoint(checkpoint, model_dtype(config), adapter=adapter), config, observer)

    # On a thread that ends, and with it those of OpenMP that wait for it: while there are more than processors, OpenMP
    # lets the engine's own sleep after every operation, and to wake one takes longer than a small operation does.
    with ThreadPoolExecutor(1, "build-engine") as builder:
        engine = builder.submit(build).result()
    # what was built so far lives as long as the process: keep it out of every later collection
    gc.collect()
    gc.freeze()
    release_freed_memory()
    engine.start()
    return engine


def build_engine(checkpoint: Checkpoint, config: EngineConfig, observer: EngineObserver) -> EngineThread:
    """Wire an engine around a loaded model; :meth:`EngineThread.start` makes it run."""
    model, device = checkpoint.config, find_device(config)
    kernels = find_kernels(config, device)
    int8 = config.linear_dtype == "int8"
    decoder = Decoder(model, move_weights(checkpoint.weights, device), kernels, int8_feed_forward=int8)
    recorder = find_recorder(config, device)
    free_bytes = max(0, free_memory(device) - (RESERVED_BYTES if recorder is not None else 0))
    num_blocks = count_blocks(model, config, free_bytes=free_bytes)
    pool = KvPool(model, num_blocks=num_blocks, block_size=config.block_size, dtype=pool_dtype(config), device=device)
    replays = None
    if recorder is not None and isinstance(kernels, ReplayableKernels) and num_blocks > 1:
        replays = record_steps(
            decoder, pool, kernels, recorder, block_size=config.block_size, step_tokens=config.step_tokens
        )
    # what is replayed writes to the last block what nobody wants
    cache = PrefixCache(num_blocks=num_blocks if replays is None else num_blocks - 1, block_size=config.block_size)
    scheduler = Scheduler(cache, step_tokens=config.step_tokens)
    longest = min(config.max_row_tokens or model.max_positions, model.max_positions)
    if longest > cache.capacity_tokens:
        _LOG.warning("rows are limited to the %d tokens of the pool, not %d", cache.capacity_tokens, longest)
    largest_step = config.step_tokens if device.type == "cuda" else None
    warm_up_s = warm_up(decoder, pool, kernels, block_size=config.block_size, largest_step=largest_step)
    info = EngineInfo(
        model=checkpoint.name,
        revision=checkpoint.revision,
        dtype=config.dtype,
        linear_dtype=config.dtype if config.linear_dtype == "auto" else config.linear_dtype,
        kv_dtype=config.dtype if config.kv_dtype == "auto" else config.kv_dtype,
        device=config.device,
        kernels=kernels.name,
        vocab_size=len(checkpoint.weights.head),
        num_layers=model.num_layers,
        weight_bytes=checkpoint.weights.num_bytes(as_codes=kernels.keeps_codes, int8=int8),
        kv_bytes_per_token=model.kv_bytes_per_token(*config.kv_widths),
        block_size=config.block_size,
        num_blocks=cache.num_blocks,
        max_row_tokens=min(longest, cache.capacity_tokens),
        step_tokens=config.step_tokens,
        max_queued_tokens=config.max_queued_tokens,
        warm_up_s=warm_up_s,
        replayed_tokens=() if replays is None else replays.sizes,
    )
    steps = StepRunner(
        decoder=decoder,
        pool=pool,
        cache=cache,
        scheduler=scheduler,
        kernels=kernels,
        replays=replays,
    )
    return EngineThread(info=info, cache=cache, scheduler=scheduler, steps=steps, observer=observer)
