"""One step: schedule, lay out, run, read, commit."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from engine.batch import StepLayout, lay_out, on_device
from engine.device_clock import DeviceClock
from engine.device_loss import is_device_lost
from engine.kv_pool import KvPool
from engine.model import Decoder
from engine.prefix_cache import PrefixCache
from engine.readout import Questions, ask, read_out
from engine.records import StepStats
from engine.replay import StepReplays
from engine.scheduler import Scheduler, Step
from kernels.api import KernelSet


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What is left of a step once its tensors are gone."""

    read_rows: int
    num_spans: int
    began: float
    ended: float
    prefill_s: float
    readout_s: float


class StepRunner:
    """Runs steps one after the other on the tensors of one model, on a thread that is in inference mode.

    Args:
        replays: Recordings of small steps, for ``decoder`` and ``pool``.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        pool: KvPool,
        cache: PrefixCache,
        scheduler: Scheduler,
        kernels: KernelSet,
        replays: StepReplays | None = None,
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._cache = cache
        self._scheduler = scheduler
        self._kernels = kernels
        self._replays = replays
        self._clock = DeviceClock(decoder.device)

    def run(self) -> tuple[Step, StepStats] | None:
        """Run the next step, if any task waits. Rows that it finishes have their outcome after it.

        Raises:
            StepFailed: it could not be computed. The cache is as it was before, less what was evicted;
                whatever else is raised means that the books are wrong, and nothing may run after it.
        """
        began = time.perf_counter()
        step = self._scheduler.next_step()
        if step is None:
            return None
        try:
            ran = self._compute(step)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # or who keeps the error keeps the tensors of the step
            self._scheduler.finish(step, commit=False)
            raise StepFailed(step, device_lost=is_device_lost(self._decoder.device, error)) from error
        self._account(step, prefill_s=ran.prefill_s, readout_s=ran.readout_s)
        kept_tokens = self._scheduler.finish(step, commit=True)
        return step, StepStats(
            num_rows=len(step.rows),
            num_tasks=len(step.tasks),
            computed_tokens=step.trie.num_fresh,
            kept_tokens=kept_tokens,
            read_rows=ran.read_rows,
            evicted_tokens=self._cache.take_evicted_tokens(),
            num_spans=ran.num_spans,
            schedule_s=ran.began - began,
            prefill_s=ran.prefill_s,
            readout_s=ran.readout_s,
            commit_s=time.perf_counter() - ran.ended,
        )

    def _compute(self, step: Step) -> _Ran:
        layout = lay_out(step, self._cache.block_size)
        began = time.perf_counter()
        # Before the layers of a CPU, which leave little of this code in its caches; after those of another device are
        # launched, which runs them meanwhile.
        questions = self._ask(layout) if self._decoder.device.type == "cpu" else None
        self._clock.start()
        hidden = self._replays.run(layout) if self._replays is not None else None
        if hidden is None:
            hidden = self._decoder.forward(on_device(layout, self._decoder.device), self._pool)
        self._clock.stop()
        read_out(questions or self._ask(layout), hidden, self._decoder.head, self._kernels)
        ended = time.perf_counter()
        prefill_s = self._clock.seconds()
        return _Ran(
            read_rows=len(layout.read_rows),
            num_spans=layout.spans.num_spans,
            began=began,
            ended=ended,
            prefill_s=prefill_s,
            readout_s=max(0.0, ended - began - prefill_s),
        )

    def _ask(self, layout: StepLayout) -> Questions:
        return ask(layout.reads, num_rows=len(layout.read_rows), device=self._decoder.device)

    @staticmethod
    def _account(step: Step, *, prefill_s: float, readout_s: float) -> None:
        for row, new in zip(step.rows, step.new, strict=True):
            assert row.task.began is not None, "a task of a step has begun"
            row.state.account(row.match, end=row.end, fresh_from=row.fresh_from, new=new, began=row.task.began)
            row.task.queued_tokens = max(0, row.task.queued_tokens - sum(high - low for low, high in new))
        for task in step.tasks:
            task.num_steps += 1
            task.prefill_s += prefill_s
            task.readout_s += readout_s
            task.advance()


class StepFailed(Exception):
    """A forward pass raised; ``step`` names the tasks that are lost.

    Args:
        device_lost: No other step can succeed in this process.
    """

    def __init__(self, step: Step, *, device_lost: bool) -> None:
        super().__init__(f"a step of {len(step.rows)} rows and {step.trie.num_fresh} tokens failed")
        self.step = step
        self.device_lost = device_lost
