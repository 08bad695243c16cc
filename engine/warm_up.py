"""Runs small steps before the first request, so that no request waits for a compiler.

A kernel is compiled when it is first launched with its constants, dtypes and strides. The
kernel set lists steps that together ask for every launch; they are run through the model itself,
on a pool that holds nothing yet, so what is compiled is what requests will launch.
"""

from __future__ import annotations

import logging
import time

import numpy as np
import torch

from engine.batch import ExtendBatch, StepLayout, on_device
from engine.errors import DeviceError
from engine.kv_pool import KvPool
from engine.model import Decoder
from kernels.api import KernelInputError, KernelSet, SpanTable, StepSize

_LOG = logging.getLogger(__name__)


@torch.inference_mode()
def warm_up(
    decoder: Decoder, pool: KvPool, kernels: KernelSet, *, block_size: int, largest_step: int | None = None
) -> float:
    """Compile everything that a step can ask for; nothing where the kernel set compiles nothing.

    Writes to the first slot of ``pool``.

    Args:
        largest_step: Tokens of a step to run as well, to learn that the device has room for it.

    Returns:
        Seconds that it took.

    Raises:
        DeviceError: the model's shape is not for these kernels, or a step has no room beside the pool.
    """
    began = time.perf_counter()
    max_keys = min(pool.num_slots, decoder.max_positions - 1)
    try:
        sizes = dict.fromkeys(
            size
            for shape in decoder.shapes
            for size in kernels.warm_up(shape, decoder.dtype, quantised=pool.scales is not None, max_keys=max_keys)
        )
    except KernelInputError as error:
        raise DeviceError(f"kernels {kernels.name!r} cannot run this model: {error}") from error
    if largest_step is not None:
        sizes[StepSize(queries=largest_step, keys=0)] = None
    for number, size in enumerate(sizes, start=1):
        _run(on_device(_step(size, block_size), decoder.device), decoder, pool, kernels)
        _LOG.info(
            "warm-up step %d of %d (%d rows, %d keys): %.1f s so far",
            number, len(sizes), size.queries, size.keys, time.perf_counter() - began,
        )  # fmt: skip
    return time.perf_counter() - began if sizes else 0.0


def _run(batch: ExtendBatch, decoder: Decoder, pool: KvPool, kernels: KernelSet) -> None:
    """One step with both readouts. What goes wrong on the device does so here and not in a request."""
    head = decoder.head
    try:
        hidden = decoder.forward(batch, pool)
        labels = torch.zeros(len(hidden), 2, dtype=torch.int64, device=decoder.device)
        kernels.label_logits(hidden, head.weight, labels, head.soft_cap)
        kernels.log_sum_exp(hidden, head.weight, head.soft_cap)
        if decoder.device.type == "cuda":
            torch.cuda.synchronize(decoder.device)
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"a step of {len(batch.tokens)} tokens has no room beside the weights and a pool of {pool.num_bytes} bytes;"
            " lower step_tokens or pool_bytes"
        ) from error


def _step(size: StepSize, block_size: int) -> StepLayout:
    """The step of ``size``: every row is read, and the first is kept."""
    first = np.zeros(1, dtype=np.int64)
    return StepLayout(
        tokens=np.zeros(size.queries, dtype=np.int64),
        spans=_spans(size, block_size),
        read_rows=np.arange(size.queries, dtype=np.int64),
        keep_rows=first,
        keep_slots=first,
        reads=[],
    )


def _spans(size: StepSize, block_size: int) -> SpanTable:
    rows = np.arange(size.queries, dtype=np.int32)
    prefix = np.zeros(1 if size.keys else 0, dtype=np.int32)

    def column(of_prefix: int, of_rows: np.ndarray) -> np.ndarray:
        return np.concatenate([prefix + of_prefix, of_rows]).astype(np.int32)

    one = np.ones_like(rows)
    return SpanTable(
        positions=one * size.keys,
        query_lo=column(0, rows),
        query_hi=column(size.queries, rows + 1),
        key_lo=column(0, rows),
        key_tokens=column(size.keys, one),
        key_position=column(0, one * size.keys),
        from_pool=column(1, 0 * one).astype(np.bool_),
        causal=column(0, one).astype(np.bool_),
        block_ids=np.arange(-(-size.keys // block_size), dtype=np.int32),
        block_size=block_size,
    )
