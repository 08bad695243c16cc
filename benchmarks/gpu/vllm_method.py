"""vLLM's unified Triton attention as a peer, where vLLM is installed.

Every row is a sequence of its own. Rows share the whole pages of the prefix, as vLLM's prefix cache
does; the rest of the prefix stands in each row's own pages, which are written outside the time taken.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.gpu.methods import Unavailable, row_and_offset
from benchmarks.gpu.workloads import Step

_PAGE_SIZE = 16
# where it has been; the newest place first
_MODULES = ("vllm.v1.attention.ops.triton_unified_attention", "vllm.attention.ops.triton_unified_attention")


class VllmUnified:
    """One paged attention call, each row walking the whole prefix for itself."""

    name = "vllm, unified triton"

    def prepare(self, step: Step) -> Callable[[], Tensor]:
        attend = _module().unified_attention
        workload, shape = step.workload, step.workload.shape
        lengths = np.array(workload.row_tokens)
        tables = _Pages(step)
        keys, values = tables.fill(step.key_pool, step.key), tables.fill(step.value_pool, step.value)
        out = torch.empty_like(step.query)
        arguments = {
            "q": step.query,
            "k": keys,
            "v": values,
            "out": out,
            "cu_seqlens_q": tables.ints(np.concatenate([[0], np.cumsum(lengths)])),
            "max_seqlen_q": int(lengths.max()),
            "seqused_k": tables.ints(workload.prefix_tokens + lengths),
            "max_seqlen_k": workload.prefix_tokens + int(lengths.max()),
            "softmax_scale": shape.scale,
            "causal": True,
            "window_size": (-1, -1),
            "block_table": tables.ints(tables.block_table),
            "softcap": 0.0,
            "q_descale": None,
            "k_descale": None,
            "v_descale": None,
        }

        def run() -> Tensor:
            attend(**arguments)
            return out

        return run


class _Pages:
    """Where the tokens of every row stand: the shared pages first, then each row's own."""

    def __init__(self, step: Step) -> None:
        self._step = step
        prefix = step.workload.prefix_tokens
        self._shared, self._tail = divmod(prefix, _PAGE_SIZE)
        lengths = np.array(step.workload.row_tokens)
        pages = -(-(self._tail + lengths) // _PAGE_SIZE)
        self._first = self._shared + np.cumsum(pages) - pages
        self._count = self._shared + int(pages.sum())
        self.block_table = np.zeros((len(lengths), self._shared + int(pages.max())), np.int64)
        self.block_table[:, : self._shared] = np.arange(self._shared)
        for row, (first, count) in enumerate(zip(self._first, pages, strict=True)):
            self.block_table[row, self._shared : self._shared + count] = np.arange(first, first + count)

    def ints(self, values: npt.NDArray[np.int64]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int32, device=self._step.query.device)

    def fill(self, pool: Tensor, fresh: Tensor) -> Tensor:
        """Keys or values as pages ``[N, page, H_kv, D]``."""
        prefix = self._step.prefix(pool).transpose(0, 1)  # [P, H_kv, D]
        whole = self._shared * _PAGE_SIZE
        flat = prefix.new_zeros(self._count * _PAGE_SIZE, *prefix.shape[1:])
        flat[:whole] = prefix[:whole]
        starts = torch.as_tensor(self._first * _PAGE_SIZE, device=flat.device)
        tail = torch.arange(self._tail, device=flat.device)
        flat[starts[:, None] + tail] = prefix[whole:].expand(len(starts), -1, -1, -1)
        row, inside = row_and_offset(self._step)
        flat[starts[row] + self._tail + inside] = fresh
        return flat.view(self._count, _PAGE_SIZE, *flat.shape[1:])


def _module() -> ModuleType:
    if importlib.util.find_spec("vllm") is None:
        raise Unavailable("vllm is not installed")
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise Unavailable(f"vllm has none of {', '.join(_MODULES)}")
