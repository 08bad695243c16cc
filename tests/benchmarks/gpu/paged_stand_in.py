"""Stands in for flashinfer: its documented page tables, read by a loop over requests."""

from __future__ import annotations

import types
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def read(cache: Tensor, pages: list[int], last_page: int) -> Tensor:
    """``[keys, H_kv, D]`` of one request from HND pages."""
    together = torch.cat([cache[page].transpose(0, 1) for page in pages])
    return together[: len(together) - cache.shape[2] + last_page]


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, *, hidden_after: Tensor) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    hidden = torch.arange(len(keys))[None, :] > hidden_after[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)


class Rows:
    def __init__(self, _workspace: Tensor, layout: str) -> None:
        assert layout == "HND"

    def plan(self, *tables: Any, causal: bool, sm_scale: float, **_: Any) -> None:
        self.levels = [tables[:4]]
        self.scale = sm_scale
        assert causal

    def run(self, query: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        starts = self.levels[-1][0].tolist()
        parts = []
        for row, (lo, hi) in enumerate(pairwise(starts)):
            keys, values = (torch.cat([self._keys(half, level, row) for level in self.levels]) for half in cache)
            own = torch.arange(hi - lo) + len(keys) - (hi - lo)
            parts.append(attend(query[lo:hi], keys, values, self.scale, hidden_after=own))
        return torch.cat(parts)

    def _keys(self, half: Tensor, level: Any, row: int) -> Tensor:
        queries, starts, ids, last = (column.tolist() for column in level)
        entry = row if len(queries) > 2 else 0
        return read(half, ids[starts[entry] : starts[entry + 1]], last[entry])


class Cascade(Rows):
    def __init__(self, levels: int, workspace: Tensor, layout: str) -> None:
        super().__init__(workspace, layout)
        assert levels == 2

    def plan(self, *tables: Any, causal: bool, sm_scale: float, **_: Any) -> None:
        self.levels = list(zip(*tables[:4], strict=True))
        self.scale = sm_scale
        assert causal


def module() -> types.SimpleNamespace:
    return types.SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Rows, MultiLevelCascadeAttentionWrapper=Cascade)


def unified_attention(**arguments: Any) -> None:
    """What vLLM's function of this name is documented to do, one sequence at a time."""
    starts, lengths = arguments["cu_seqlens_q"].tolist(), arguments["seqused_k"].tolist()
    assert arguments["causal"]
    assert arguments["window_size"] == (-1, -1)
    assert arguments["max_seqlen_q"] == max(hi - lo for lo, hi in pairwise(starts))
    assert arguments["max_seqlen_k"] == max(lengths)
    for row, (lo, hi) in enumerate(pairwise(starts)):
        pages = arguments["block_table"][row].long()
        keys, values = (arguments[half][pages].flatten(0, 1)[: lengths[row]] for half in ("k", "v"))
        own = torch.arange(hi - lo) + lengths[row] - (hi - lo)
        query = arguments["q"][lo:hi]
        arguments["out"][lo:hi] = attend(query, keys, values, arguments["softmax_scale"], hidden_after=own)


def vllm_module() -> types.SimpleNamespace:
    return types.SimpleNamespace(unified_attention=unified_attention)
