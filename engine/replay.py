"""Replays small steps from a recording, so that the host launches one thing instead of hundreds.

A step is padded to the next of a few sizes and written to the memory of that size; the recording of
everything between embedding and final norm is run on it. Each size is recorded at start and compared
with steps that are launched as usual. Steps that do not fit are launched as usual, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.batch import PaddedBatch, StepLayout, on_device
from engine.kv_pool import KvPool, free_memory
from engine.model import Decoder
from engine.padding import padded
from engine.sample_steps import sample_step
from kernels.api import ReplayableKernels, ReplayLayout

_LOG = logging.getLogger(__name__)

SIZES = (16, 32, 64, 128, 256)
"""Tokens of the steps that are recorded. Larger ones keep a device busy while the host launches."""

RESERVED_BYTES = 512 * 2**20
"""Memory of a device that is left free for recordings when the pool is sized."""

_NUM_COLUMNS = 5
_INTS = 2  # int32s of an int64
# relative error of a row's hidden state: products of other shapes are rounded in another order
_TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.1}
_SAMPLE_PREFIX = 40


class Recorder(Protocol):
    """Something that can do again what a device was told to do."""

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Call ``run``, and give what repeats its work on the device, in the same memory.

        What the repetition returns is good until the next of any recording of this recorder.
        """
        ...


class ReplayFailed(Exception):
    """A recording does not do what it recorded."""


class _StepMemory:
    """Memory for the steps of one size, one after the other."""

    def __init__(self, num_tokens: int, layout: ReplayLayout, device: torch.device) -> None:
        self._num_tokens = num_tokens
        self._layout = layout
        self._column_ints = _NUM_COLUMNS * num_tokens * _INTS
        self._numbers = torch.zeros(self._column_ints + layout.num_ints, dtype=torch.int32, device=device)
        columns = self._numbers[: self._column_ints].view(torch.int64).view(_NUM_COLUMNS, num_tokens)
        self.batch = PaddedBatch(
            tokens=columns[0],
            positions=columns[1],
            read_rows=columns[2],
            keep_rows=columns[3],
            keep_slots=columns[4],
            plan=layout.plan(self._numbers[self._column_ints :]),
        )

    def write(self, step: StepLayout, *, spare_slot: int) -> bool:
        """Put a step in place of the last one, with one copy; False, and nothing is changed, if it does not fit."""
        on_cuda = self._numbers.device.type == "cuda"
        # anew for each step: what was written for the last one may still be on its way
        host = torch.empty(self._numbers.shape, dtype=torch.int32, pin_memory=on_cuda)
        numbers = host.numpy()
        whole = padded(step, self._num_tokens, spare_slot=spare_slot)
        used = self._layout.write(whole.spans, numbers[self._column_ints :])
        if used is None:
            return False
        columns = numbers[: self._column_ints].view(np.int64).reshape(_NUM_COLUMNS, self._num_tokens)
        columns[:] = whole.tokens, whole.spans.positions, whole.read_rows, whole.keep_rows, whole.keep_slots
        used += self._column_ints
        self._numbers[:used].copy_(host[:used], non_blocking=True)
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Recording:
    memory: _StepMemory
    replay: Callable[[], Tensor]


class StepReplays:
    """Recordings of steps of a few sizes. Belongs to the thread that runs the steps.

    Args:
        recordings: By number of tokens.
        spare_slot: Of the pool; nobody reads it.
    """

    def __init__(self, recordings: Mapping[int, _Recording], *, spare_slot: int) -> None:
        self._recordings = dict(sorted(recordings.items()))
        self._spare_slot = spare_slot

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens of the steps that are recorded, ascending."""
        return tuple(self._recordings)

    def run(self, step: StepLayout) -> Tensor | None:
        """Hidden states ``[R, d]`` as :meth:`engine.model.Decoder.forward` gives them; None if the step does not fit.

        Good until the next step.
        """
        size = next((size for size in self._recordings if size >= len(step.tokens)), None)
        if size is None:
            return None
        recording = self._recordings[size]
        if not recording.memory.write(step, spare_slot=self._spare_slot):
            return None
        return recording.replay()[: len(step.read_rows)]


@torch.inference_mode()
def record_steps(
    decoder: Decoder,
    pool: KvPool,
    kernels: ReplayableKernels,
    recorder: Recorder,
    *,
    block_size: int,
    step_tokens: int,
) -> StepReplays | None:
    """Record every size of steps and try it out; None, with a warning, where one of them fails.

    Writes to the first slots of ``pool``, and from then on to its last: that block is nobody's.

    Args:
        step_tokens: Most tokens of a step.
    """
    began, free_before = time.perf_counter(), free_memory(decoder.device)
    spare_slot = pool.num_slots - 1
    recordings: dict[int, _Recording] = {}
    sizes = [size for size in SIZES if size <= min(step_tokens, decoder.max_positions)]
    size = 0
    try:
        # the largest first: the others then find room in its memory
        for size in sorted(sizes, reverse=True):
            recordings[size] = _record(size, decoder, pool, kernels, recorder, block_size=block_size)
        replays = StepReplays(recordings, spare_slot=spare_slot)
        for size in replays.sizes:
            _try_out(replays, size, decoder, pool, block_size)
    except Exception as error:  # noqa: BLE001  whatever it is, steps can be launched without
        _LOG.warning("steps are launched kernel by kernel, for the recording of %d tokens failed: %s", size, error)
        return None
    _LOG.info(
        "steps of %s tokens are replayed; recorded in %.1f s, with %d MiB of memory",
        ", ".join(map(str, replays.sizes)), time.perf_counter() - began,
        max(0, free_before - free_memory(decoder.device)) >> 20,
    )  # fmt: skip
    return replays


def _record(
    size: int, decoder: Decoder, pool: KvPool, kernels: ReplayableKernels, recorder: Recorder, *, block_size: int
) -> _Recording:
    """Record what a step of ``size`` tokens launches.

    Raises:
        ReplayFailed: there is no room for a plain step.
    """
    layout = kernels.replay_layout(
        decoder.shapes,
        decoder.dtype,
        quantised=pool.scales is not None,
        num_queries=size,
        block_size=block_size,
        num_slots=pool.num_slots,
    )
    memory = _StepMemory(size, layout, decoder.device)
    if not memory.write(sample_step(size, cached=0, block_size=block_size), spare_slot=pool.num_slots - 1):
        raise ReplayFailed("a step without cached keys has no room")
    return _Recording(memory=memory, replay=recorder.record(partial(decoder.forward_padded, memory.batch, pool)))


def _try_out(replays: StepReplays, num_tokens: int, decoder: Decoder, pool: KvPool, block_size: int) -> None:
    """Compare replayed steps with launched ones: a smaller one after a larger one, with and without cached keys.

    Raises:
        ReplayFailed: a row differs by more than rounding.
    """
    cached = min(_SAMPLE_PREFIX, pool.num_slots // 2, decoder.max_positions - num_tokens)
    if cached:
        first = sample_step(cached, cached=0, block_size=block_size, kept=cached)
        decoder.forward(on_device(first, decoder.device), pool)
    least = num_tokens // 2 + 1
    for tokens, prefix in ((num_tokens, cached), (least, 0), (least, cached // 2), (num_tokens, cached)):
        step = sample_step(tokens, cached=prefix, block_size=block_size)
        launched = decoder.forward(on_device(step, decoder.device), pool)
        replayed = replays.run(step)
        if replayed is None:
            raise ReplayFailed(f"a step of {tokens} tokens on {prefix} has no room")
        error = float(((replayed - launched).norm(dim=-1) / launched.norm(dim=-1)).max())
        limit = _TOLERANCE[decoder.dtype]
        if not error <= limit:  # also if it is no number
            raise ReplayFailed(f"hidden states differ by {error:.3g}; at most {limit:g} is rounding")
