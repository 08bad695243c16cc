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
from torch import Tensor

from engine.batch import ExtendBatch, to_device
from engine.kv_pool import KvPool
from engine.model import Decoder
from kernels.api import KernelSet, SpanTable, StepSize

_LOG = logging.getLogger(__name__)


@torch.inference_mode()
def warm_up(decoder: Decoder, pool: KvPool, kernels: KernelSet, *, block_size: int) -> float:
    """Compile everything that a step can ask for; nothing where the kernel set compiles nothing.

    Writes to the first slot of ``pool``.

    Returns:
        Seconds that it took.

    Raises:
        KernelInputError: the model's shape is not for these kernels.
    """
    began = time.perf_counter()
    max_keys = min(pool.num_slots, decoder.max_positions - 1)
    sizes = dict.fromkeys(
        size
        for shape in decoder.shapes
        for size in kernels.warm_up(shape, decoder.dtype, quantised=pool.scales is not None, max_keys=max_keys)
    )
    for number, size in enumerate(sizes, start=1):
        hidden = decoder.forward(_batch(size, block_size, decoder.device), pool)
        _read(hidden, decoder, kernels)
        _LOG.info(
            "warm-up step %d of %d (%d rows, %d keys): %.1f s so far",
            number, len(sizes), size.queries, size.keys, time.perf_counter() - began,
        )  # fmt: skip
    if decoder.device.type == "cuda":
        torch.cuda.synchronize(decoder.device)  # a kernel that fails does so here
    return time.perf_counter() - began if sizes else 0.0


def _read(hidden: Tensor, decoder: Decoder, kernels: KernelSet) -> None:
    head = decoder.head
    labels = torch.zeros(len(hidden), 2, dtype=torch.int64, device=decoder.device)
    kernels.label_logits(hidden, head.weight, labels, head.soft_cap)
    kernels.log_sum_exp(hidden, head.weight, head.soft_cap)


def _batch(size: StepSize, block_size: int, device: torch.device) -> ExtendBatch:
    """The step of ``size``: every row is read, and the first is kept."""
    rows = np.arange(size.queries, dtype=np.int64)
    positions = np.full(size.queries, size.keys, dtype=np.int64)
    nothing, first = np.zeros_like(rows), np.zeros(1, dtype=np.int64)
    columns = to_device([nothing, positions, rows, first, first], device)
    spans = _spans(size, block_size)
    return ExtendBatch(
        tokens=columns[0],
        positions=columns[1],
        spans=spans,
        read_rows=columns[2],
        read_spans=spans,
        keep_rows=columns[3],
        keep_slots=columns[4],
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
