"""The kernel set for a CPU: packed tokens, one attention call per shared segment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import checks
from kernels.api import (
    CODE_LIMIT,
    Activation,
    AttentionPlan,
    AttentionShape,
    KernelInputError,
    LastLayerOps,
    LayerOps,
    LayersInput,
    LayersOp,
    LinearOp,
    PoolHalf,
    QuantisedPool,
    SpanTable,
    StepSize,
    SublayerOp,
)
from kernels.composed import capped, feed_forward, normed_linear, vocabulary_logits
from kernels.cpu_attention import SegmentPlan, attend, make_plan
from kernels.cpu_quantised import store_quantised
from kernels.int8_linear import Int8Linear, int8_linear_works
from kernels.native import AttentionWork, NativeAttention, NativeFeedForward8, NativeLinear, NativeOps
from kernels.packed_linear import PackedLinear, packing_works
from kernels.weights import Weight, dense

_VOCABULARY_CHUNK = 8192


class CpuPlan:
    """A span table, made ready for whichever attention runs it when that is known."""

    def __init__(self, table: SpanTable, native: NativeOps | None = None) -> None:
        reach = None if native is None else native.check_spans(table)
        self.reach = checks.check_spans(table) if reach is None else reach
        self.num_queries = table.num_queries
        self.ways: dict[object, NativeAttention | None] = {}  # by what tensors look like that were checked
        self._table = table
        self._cut = None if native is None or native.attention is None else native.attention.cut
        self._work: dict[tuple[int, int], AttentionWork] = {}

    @cached_property
    def segments(self) -> SegmentPlan:
        return make_plan(self._table)

    def work(self, shape: AttentionShape) -> AttentionWork:
        """The cut for layers of ``shape``, for attention in C; the same for all that share its head counts."""
        key = (shape.num_heads, shape.num_kv_heads)
        if key not in self._work:
            assert self._cut is not None, "there is attention in C"
            self._work[key] = self._cut(
                self._table,
                group=shape.num_heads // shape.num_kv_heads,
                kv_heads=shape.num_kv_heads,
                num_threads=torch.get_num_threads(),
            )
        return self._work[key]


class CpuKernels:
    """Implements :class:`kernels.api.KernelSet` with operations that PyTorch fuses on a CPU.

    On bfloat16, operations run natively where :mod:`kernels.native` could be built. With AMX
    (``name`` is ``cpu-amx``) a row has the same bits in every step.
    Judge: ``kernels.reference.ReferenceKernels``.
    """

    code_dtypes = frozenset(CODE_LIMIT)

    @cached_property
    def has_int8(self) -> bool:
        return self._native_int8 is not None or int8_linear_works(self._native)

    @property
    def keeps_codes(self) -> bool:
        return self._native is not None and self._native.linear is not None

    def __init__(self, native: NativeOps | None = None) -> None:
        self._native = native
        self._packs = packing_works()
        self.name = "cpu" if native is None else "cpu-native" if native.linear is None else "cpu-amx"

    def warm_up(
        self, shape: AttentionShape, dtype: torch.dtype, *, quantised: bool, max_keys: int
    ) -> tuple[StepSize, ...]:
        del shape, dtype, quantised, max_keys  # nothing is compiled
        return ()

    def pack_linear(self, weight: Weight, bias: Tensor | None = None) -> LinearOp:
        checks.check_linear(weight, bias)
        if (native := self._native_linear(weight)) is not None:
            return native.layer(weight, bias)
        numbers = dense(weight).contiguous()
        if self._packs and numbers.dtype == torch.bfloat16:
            return PackedLinear(numbers, bias)
        return lambda x: F.linear(x, numbers, bias)

    def pack_normed_linear(self, norm: Tensor, eps: float, weight: Weight, bias: Tensor | None = None) -> SublayerOp:
        checks.check_normed_linear(norm, weight, bias)
        if (native := self._native_linear(weight)) is not None:
            return native.normed_layer(norm, eps, weight, bias)
        return normed_linear(self, norm, eps, self.pack_linear(weight, bias))

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
        checks.check_feed_forward(norm, gate_up, down, int8=int8)
        if int8:
            return self._feed_forward_int8(norm, eps, gate_up, down, activation)
        if (native := self._native_linear(gate_up)) is not None:
            return native.feed_forward(norm, eps, gate_up, down, activation)
        return feed_forward(self, norm, eps, self.pack_linear(gate_up), self.pack_linear(down), activation)

    def _feed_forward_int8(
        self, norm: Tensor, eps: float, gate_up: Weight, down: Weight, activation: Activation
    ) -> SublayerOp:
        if self._native_int8 is not None:
            return self._native_int8(norm, eps, gate_up, down, activation)
        if not self.has_int8:
            raise KernelInputError("int8: this PyTorch has no products of 8-bit numbers that work here")
        both, back = (Int8Linear(dense(weight), self._native) for weight in (gate_up, down))
        return feed_forward(self, norm, eps, both, back, activation)

    @property
    def _native_int8(self) -> NativeFeedForward8 | None:
        return None if self._native is None else self._native.feed_forward8

    def _native_linear(self, weight: Weight) -> NativeLinear | None:
        return None if self._native is None or weight.dtype != torch.bfloat16 else self._native.linear

    def join_layers(self, layers: Sequence[LayerOps], last: LastLayerOps) -> LayersOp | None:
        joined = None if self._native is None else self._native.join(layers, last)
        if joined is None:
            return None

        def run(step: LayersInput) -> Tensor:
            plan, read_plan = (checks.own_plan(each, CpuPlan) for each in (step.plan, step.read_plan))
            checks.check_layers(
                step,
                layers,
                last,
                num_queries=plan.num_queries,
                num_read=read_plan.num_queries,
                reaches=(plan.reach, read_plan.reach),
            )
            return joined(step, plan.work(last.shape), read_plan.work(last.shape))

        return run

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        checks.check_rms_norm(x, weight)
        dense_tokens = x.stride(-1) == 1 and (x.dim() == 2 or x.stride(1) == x.shape[2])
        if self._native is not None and x.dtype == torch.bfloat16 and dense_tokens:
            return self._native.rms_norm(x, weight.float(), eps)
        if self._native is not None and x.dtype == torch.float32 and x.dim() == 2 and x.is_contiguous():
            return self._native.rms_norm32(x, weight.float(), eps)
        return _normalise(x.float(), weight, eps).to(x.dtype)

    def add_rms_norm(self, stream: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        checks.check_add_rms_norm(stream, update, weight)
        if self._native is not None and update.dtype == torch.bfloat16 and update.stride(-1) == 1:
            return self._native.add_rms_norm(stream, update, weight.float(), eps)
        return _normalise(stream.add_(update), weight, eps).to(update.dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        checks.check_rotate(x, cos, sin)
        if self._native is not None and x.dtype == torch.bfloat16 and x.stride()[1:] == (x.shape[2], 1):
            return self._native.rotate(x, cos.contiguous(), sin.contiguous())
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        turned = torch.empty(x.shape, dtype=torch.float32)
        torch.mul(first, cos, out=turned[..., :half]).addcmul_(second.float(), sin, value=-1)
        torch.mul(second, cos, out=turned[..., half:]).addcmul_(first.float(), sin)
        return turned.to(x.dtype)

    def norm_rotate(self, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        checks.check_norm_rotate(x, weight, cos, sin)
        return self.rotate(self.rms_norm(x, weight, eps), cos, sin)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        checks.check_gate_up(gate_up)
        if self._native is not None and gate_up.dtype == torch.bfloat16 and gate_up.is_contiguous():
            return self._native.swiglu(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def geglu(self, gate_up: Tensor) -> Tensor:
        checks.check_gate_up(gate_up)
        if self._native is not None and gate_up.dtype == torch.bfloat16 and gate_up.is_contiguous():
            return self._native.geglu(gate_up)
        gate, up = gate_up.float().chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up).to(gate_up.dtype)

    def store_kv(
        self, key: Tensor, value: Tensor, key_pool: PoolHalf, value_pool: PoolHalf, rows: Tensor, slots: Tensor
    ) -> None:
        checks.check_store_kv(key, value, key_pool, value_pool, rows, slots)
        for fresh, pool in ((key, key_pool), (value, value_pool)):
            if isinstance(pool, QuantisedPool):
                store_quantised(fresh, pool, rows, slots)
            elif len(rows):
                pool.index_copy_(1, slots, fresh.index_select(0, rows).transpose(0, 1))

    def plan(self, table: SpanTable) -> CpuPlan:
        return CpuPlan(table, self._native)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_pool: PoolHalf,
        value_pool: PoolHalf,
        plan: AttentionPlan,
        shape: AttentionShape,
    ) -> Tensor:
        plan = checks.own_plan(plan, CpuPlan)
        if isinstance(key_pool, Tensor) and isinstance(value_pool, Tensor):
            # layers of a step differ in nothing that is checked, and checks take a good part of a small step
            tensors = (query, key, value, key_pool, value_pool)
            look = (shape, *[(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors])
            if look not in plan.ways:
                self._check_attend(query, key, value, key_pool, value_pool, plan, shape)
                native = None if self._native is None else self._native.attention
                plan.ways[look] = native if native is not None and native.takes(*tensors) else None
            if (way := plan.ways[look]) is not None:
                return way(query, key, value, key_pool, value_pool, plan.work(shape), shape)
        else:
            self._check_attend(query, key, value, key_pool, value_pool, plan, shape)
        return attend(query, key, value, key_pool, value_pool, plan.segments, shape, self._native)

    @staticmethod
    def _check_attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_pool: PoolHalf,
        value_pool: PoolHalf,
        plan: CpuPlan,
        shape: AttentionShape,
    ) -> None:
        checks.check_attend(
            query, key, value, key_pool, value_pool, shape, num_queries=plan.num_queries, reach=plan.reach
        )

    def label_logits(self, hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_label_logits(hidden, head, label_ids, soft_cap)
        if self._native is not None and head.dtype == torch.bfloat16 and head.is_contiguous():
            return capped(self._native.label_logits(hidden.contiguous(), head, label_ids.contiguous()), soft_cap)
        columns = head.index_select(0, label_ids.flatten()).float().view(*label_ids.shape, head.shape[1])
        return capped(torch.einsum("rd,rcd->rc", hidden, columns), soft_cap)

    def log_sum_exp(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_log_sum_exp(hidden, head, soft_cap)
        if (native := self._native_linear(head)) is not None and head.is_contiguous():
            return native.log_sum_exp(hidden.contiguous(), head, soft_cap)
        total = torch.full((len(hidden),), -torch.inf)
        for start in range(0, len(head), _VOCABULARY_CHUNK):
            logits = capped(hidden @ head[start : start + _VOCABULARY_CHUNK].float().T, soft_cap)
            total = torch.logaddexp(total, torch.logsumexp(logits, dim=-1))
        return total

    def vocabulary_logits(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_log_sum_exp(hidden, head, soft_cap)
        if (native := self._native_linear(head)) is not None and head.is_contiguous():
            return native.vocabulary_logits(hidden.contiguous(), head, soft_cap)
        return vocabulary_logits(hidden, head, soft_cap)


def _normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of float32 rows, in two passes over them."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = torch.rsqrt(length.square_().div_(x.shape[-1]).add_(eps))
    return (x * scale).mul_(weight)
