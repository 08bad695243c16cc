"""A kernel set with a clock around every operation.

For runs of their own: reading the clock costs time, so no headline number comes from here.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.messages import OperationCost
from kernels import load_kernels
from kernels.api import Activation, AttentionPlan, AttentionShape, KernelSet, LinearOp, SpanTable, SublayerOp
from kernels.weights import Weight

LARGE_ROWS = 512


@dataclass(frozen=True, slots=True)
class _CountedPlan:
    """The wrapped set's plan, and how many (query, key) pairs it makes a layer look at."""

    inner: AttentionPlan
    attended: int

    @property
    def num_queries(self) -> int:
        return self.inner.num_queries


class ProfiledKernels:
    """Does what ``inner`` does and adds up what it took, by name of the operation.

    Linear layers and attention also count the floating-point operations that their shapes
    ask for. Whatever else the wrapped set offers is timed under its own name.
    """

    def __init__(self, inner: KernelSet) -> None:
        self._inner = inner
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._flop: dict[str, int] = {}

    def as_kernel_set(self) -> KernelSet:
        return cast(KernelSet, self)

    def take_costs(self) -> dict[str, OperationCost]:
        """Costs since this was last asked."""
        costs = {
            name: OperationCost(seconds, self._calls[name], self._flop.get(name, 0))
            for name, seconds in sorted(self._seconds.items())
        }
        self._seconds, self._calls, self._flop = {}, {}, {}
        return costs

    def pack_linear(self, weight: Weight, bias: Tensor | None = None) -> LinearOp:
        """See :meth:`kernels.api.KernelSet.pack_linear`; every use of the result is timed."""
        return self._counted(self._inner.pack_linear(weight, bias), weight.numel())

    def pack_normed_linear(self, norm: Tensor, eps: float, weight: Weight, bias: Tensor | None = None) -> SublayerOp:
        """See :meth:`kernels.api.KernelSet.pack_normed_linear`; counted as linear, sum and norm included."""
        return self._counted(self._inner.pack_normed_linear(norm, eps, weight, bias), weight.numel())

    def pack_feed_forward(
        self,
        norm: Tensor,
        eps: float,
        gate_up: Weight,
        down: Weight,
        activation: Activation,
        *,
        int8: bool = False,
    ) -> SublayerOp:
        """See :meth:`kernels.api.KernelSet.pack_feed_forward`; counted as linear, all of it."""
        packed = self._inner.pack_feed_forward(norm, eps, gate_up, down, activation, int8=int8)
        return self._counted(packed, gate_up.numel() + down.numel())

    def _counted(self, packed: Callable[..., Tensor], weights: int) -> Callable[..., Tensor]:
        def linear(*tensors: Tensor) -> Tensor:
            began = time.perf_counter()
            result = packed(*tensors)
            seconds = time.perf_counter() - began
            rows = len(result)
            self._add("linear", seconds, 2 * weights * rows)
            if rows >= LARGE_ROWS:
                self._add("linear_large", seconds, 2 * weights * rows)
            return result

        return linear

    def plan(self, table: SpanTable) -> AttentionPlan:
        began = time.perf_counter()
        inner = self._inner.plan(table)
        self._add("plan", time.perf_counter() - began, 0)
        return _CountedPlan(inner, attended_pairs(table))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_pool: Tensor,
        value_pool: Tensor,
        plan: AttentionPlan,
        shape: AttentionShape,
    ) -> Tensor:
        assert isinstance(plan, _CountedPlan)
        began = time.perf_counter()
        result = self._inner.attend(query, key, value, key_pool, value_pool, plan.inner, shape)
        flop = 4 * shape.num_heads * shape.head_dim * plan.attended
        self._add("attend", time.perf_counter() - began, flop)
        return result

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._timed(name, found) if callable(found) else found

    def _timed(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = operation(*args, **kwargs)
            self._add(name, time.perf_counter() - began, 0)
            return result

        return timed

    def _add(self, name: str, seconds: float, flop: int) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._calls[name] = self._calls.get(name, 0) + 1
        self._flop[name] = self._flop.get(name, 0) + flop


@contextmanager
def profiled_kernels() -> Iterator[list[ProfiledKernels]]:
    """Kernel sets that engines load meanwhile are wrapped; the list holds them."""
    made: list[ProfiledKernels] = []

    def load_profiled(name: str, device: torch.device) -> KernelSet:
        made.append(ProfiledKernels(load_kernels(name, device)))
        return made[-1].as_kernel_set()

    with mock.patch("engine.device.load_kernels", load_profiled):
        yield made


def attended_pairs(table: SpanTable) -> int:
    """(query, key) pairs that the spans let see each other, without sliding windows."""
    total = 0
    queries = table.query_hi.astype(np.int64) - table.query_lo
    total += int((queries * table.key_tokens)[~table.causal].sum())
    for span in np.flatnonzero(table.causal):
        positions = table.positions[table.query_lo[span] : table.query_hi[span]]
        seen = np.clip(positions.astype(np.int64) - table.key_position[span] + 1, 0, table.key_tokens[span])
        total += int(seen.sum())
    return total
