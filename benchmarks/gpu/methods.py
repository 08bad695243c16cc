"""Ways to compute the attention of one step; each is checked before it is timed.

What a method can prepare once per step (masks, page tables, padded copies of the prefix, a
plan) is prepared outside the time that is taken, in its favour.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.workloads import Step
from kernels.api import KernelSet

# a padded batch may take this share of the device's memory
_MEMORY_SHARE = 0.4

_LARGEST_PAGE = 16
_WORKSPACE_BYTES = 512 << 20


class Unavailable(Exception):
    """The method does not run here, or not on this step; the text says why."""


class Method(Protocol):
    """Computes the attention of a step."""

    name: str

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        """A call that computes ``[T, H, D]`` once.

        Raises:
            Unavailable: this machine or this step is not for the method.
        """
        ...


class SetMethod:
    """A kernel set of this project; its plan is made once per step, as the engine does."""

    def __init__(self, name: str, kernels: KernelSet) -> None:
        self.name = name
        self._kernels = kernels

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        plan = self._kernels.plan(step.table())
        tensors = step.query, step.key, step.value, step.key_pool, step.value_pool
        return lambda: self._kernels.attend(*tensors, plan, step.workload.shape)


class PaddedSdpa:
    """PyTorch's attention over a padded batch: one entry per row, the prefix repeated in each."""

    name = "sdpa, padded batch"

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        workload, shape = step.workload, step.workload.shape
        rows, longest = len(workload.row_tokens), max(workload.row_tokens)
        keys_per_row = workload.prefix_tokens + longest
        element_bytes = step.query.element_size()
        num_bytes = (
            element_bytes
            * rows
            * shape.head_dim
            * (2 * shape.num_kv_heads * keys_per_row + 2 * shape.num_heads * longest)
            + rows * longest * keys_per_row
        )
        _refuse_too_large(num_bytes, step.query.device)
        at, inside = row_and_offset(step)
        query = _padded(step.query, at, inside, rows=rows, longest=longest)
        prefix_keys, prefix_values = (
            step.prefix(pool).expand(rows, -1, -1, -1) for pool in (step.key_pool, step.value_pool)
        )
        keys = torch.cat([prefix_keys, _padded(step.key, at, inside, rows=rows, longest=longest)], dim=2)
        values = torch.cat([prefix_values, _padded(step.value, at, inside, rows=rows, longest=longest)], dim=2)
        index = torch.arange(longest, device=query.device)
        own = index[:, None] >= index[None, :]
        mask = torch.cat([own.new_ones(longest, workload.prefix_tokens), own], dim=1)

        def run() -> Tensor:
            out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=shape.scale, enable_gqa=True)
            return out.transpose(1, 2)[at, inside]

        return run


class CompiledFlex:
    """FlexAttention, compiled, over the packed step: the prefix stands once before all rows."""

    name = "flex_attention, packed"

    def __init__(self) -> None:
        self._attention: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        workload, shape = step.workload, step.workload.shape
        if shape.head_dim & (shape.head_dim - 1) or shape.num_heads % shape.num_kv_heads:
            raise Unavailable(f"head size {shape.head_dim} is not a power of two")
        prefix = workload.prefix_tokens
        row = row_and_offset(step)[0]

        def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = torch.clamp(key - prefix, min=0)
            return (key < prefix) | ((row[own] == row[query]) & (own <= query))

        tokens = workload.num_tokens
        mask = create_block_mask(visible, None, None, tokens, prefix + tokens, device=str(step.query.device))
        query = step.query.transpose(0, 1)[None].contiguous()
        keys = torch.cat([step.prefix(step.key_pool), step.key.transpose(0, 1)], dim=1)[None]
        values = torch.cat([step.prefix(step.value_pool), step.value.transpose(0, 1)], dim=1)[None]

        def run() -> Tensor:
            out: Tensor = self._attention(query, keys, values, block_mask=mask, scale=shape.scale, enable_gqa=True)
            return out[0].transpose(0, 1)

        return run


class FlashInfer:
    """FlashInfer's paged prefill: row by row, or as a cascade of the prefix and the rows."""

    def __init__(self, *, cascade: bool) -> None:
        self.name = "flashinfer, cascade" if cascade else "flashinfer, rows"
        self._cascade = cascade

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        if importlib.util.find_spec("flashinfer") is None:
            raise Unavailable("flashinfer is not installed")
        flashinfer: Any = importlib.import_module("flashinfer")
        workload, shape = step.workload, step.workload.shape
        device = step.query.device
        # rows can share whole pages only, so the page is the largest that the prefix fills
        page_size = math.gcd(workload.prefix_tokens, _LARGEST_PAGE)
        if self._cascade and not workload.prefix_tokens:
            raise Unavailable("no prefix to cascade")
        lengths = np.array(workload.row_tokens)
        pages = -(-lengths // page_size)
        first_page = np.cumsum(pages) - pages
        prefix_pages = np.arange(workload.prefix_tokens // page_size)
        own_pages = [len(prefix_pages) + np.arange(n) + lo for n, lo in zip(pages, first_page, strict=True)]
        rows = own_pages if self._cascade else [np.concatenate([prefix_pages, own]) for own in own_pages]
        cache = tuple(
            _paged(step, pool, fresh, first_page=first_page, page_size=page_size)
            for pool, fresh in ((step.key_pool, step.key), (step.value_pool, step.value))
        )

        def ints(values: Any) -> Tensor:
            return torch.as_tensor(np.asarray(values), dtype=torch.int32, device=device)

        query_starts = ints(np.concatenate([[0], np.cumsum(lengths)]))
        page_starts = ints(np.concatenate([[0], np.cumsum([len(row) for row in rows])]))
        page_ids = ints(np.concatenate(rows))
        last_page = ints((lengths - 1) % page_size + 1)
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        heads = shape.num_heads, shape.num_kv_heads, shape.head_dim, page_size
        options = {"causal": True, "sm_scale": shape.scale, "q_data_type": step.query.dtype}
        if self._cascade:
            wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace, "HND")
            wrapper.plan(
                [ints([0, workload.num_tokens]), query_starts],
                [ints([0, len(prefix_pages)]), page_starts],
                [ints(prefix_pages), page_ids],
                [ints([page_size]), last_page],
                *heads,
                **options,
            )
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
            wrapper.plan(query_starts, page_starts, page_ids, last_page, *heads, **options)
        return lambda: wrapper.run(step.query, cache)


def row_and_offset(step: Step) -> tuple[Tensor, Tensor]:
    """Of every token: its row, and its place in the row."""
    lengths = torch.tensor(step.workload.row_tokens, device=step.query.device)
    row = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    start = lengths.cumsum(0) - lengths
    return row, torch.arange(len(row), device=lengths.device) - start[row]


def _padded(packed: Tensor, row: Tensor, inside: Tensor, *, rows: int, longest: int) -> Tensor:
    """``[T, H, D]`` as ``[rows, H, longest, D]``; zeros behind the end of a row."""
    out = packed.new_zeros(rows, longest, *packed.shape[1:])
    out[row, inside] = packed
    return out.transpose(1, 2).contiguous()


def _paged(step: Step, pool: Tensor, fresh: Tensor, *, first_page: np.ndarray, page_size: int) -> Tensor:
    """Pages ``[N, H_kv, page_size, D]``: those of the prefix in order, then each row's own."""
    row, inside = row_and_offset(step)
    prefix = step.prefix(pool).reshape(pool.shape[0], -1, page_size, pool.shape[2]).transpose(0, 1)
    num_own = int(first_page[-1]) + -(-step.workload.row_tokens[-1] // page_size)
    own = pool.new_zeros(num_own, page_size, pool.shape[0], pool.shape[2])
    page = torch.from_numpy(first_page).to(row.device)[row] + inside // page_size
    own[page, inside % page_size] = fresh
    return torch.cat([prefix, own.transpose(1, 2)]).contiguous()


def _refuse_too_large(num_bytes: int, device: torch.device) -> None:
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if num_bytes > _MEMORY_SHARE * total:
            raise Unavailable(f"a padded batch of {num_bytes / 2**30:.0f} GiB; {_MEMORY_SHARE:.0%} of memory allowed")
