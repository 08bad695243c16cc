"""The judge: every operation in the plainest torch, computed in float32 and rounded once.

Nothing here is meant to be fast. Attention gathers the keys of all spans side by side and
applies one dense mask, so it holds ``H * Q * keys`` scores at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels import checks
from kernels.api import (
    CODE_LIMIT,
    Activation,
    AttentionPlan,
    AttentionShape,
    BoolArray,
    IntArray,
    LinearOp,
    PoolHalf,
    QuantisedPool,
    SpanTable,
    StepSize,
    SublayerOp,
)
from kernels.composed import ComposedLayers, feed_forward
from kernels.weights import Weight, dense

_VOCABULARY_CHUNK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan:
    """Every key of every span in one row of ``keys``, and who sees it."""

    num_queries: int
    reach: checks.SpanReach
    from_pool: BoolArray  # [keys]
    source: IntArray  # [keys] slot or packed row
    visible: BoolArray  # [Q, keys]
    distance: IntArray  # [Q, keys] query position minus key position


class ReferenceKernels(ComposedLayers):
    """The float32 judge of every other kernel set; complete, so an engine can run on it.

    Stateless, hence safe in any thread. Runs on whatever device its inputs are on.
    """

    name = "reference"
    code_dtypes = frozenset(CODE_LIMIT)
    has_int8 = True
    keeps_codes = False

    def warm_up(
        self, shape: AttentionShape, dtype: torch.dtype, *, quantised: bool, max_keys: int
    ) -> tuple[StepSize, ...]:
        del shape, dtype, quantised, max_keys  # nothing is compiled
        return ()

    def pack_linear(self, weight: Weight, bias: Tensor | None = None) -> LinearOp:
        checks.check_linear(weight, bias)
        full_weight = dense(weight).float()
        full_bias = None if bias is None else bias.float()

        def linear(x: Tensor) -> Tensor:
            return torch.nn.functional.linear(x.float(), full_weight, full_bias).to(x.dtype)

        return linear

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
        pack = _rounded_linear if int8 else self.pack_linear
        return feed_forward(self, norm, eps, pack(gate_up), pack(down), activation)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        checks.check_rms_norm(x, weight)
        wide = x.float()
        mean_square = (wide * wide).mean(dim=-1, keepdim=True)
        return (wide / torch.sqrt(mean_square + eps) * weight.float()).to(x.dtype)

    def add_rms_norm(self, stream: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        checks.check_add_rms_norm(stream, update, weight)
        stream += update
        mean_square = (stream * stream).mean(dim=-1, keepdim=True)
        return (stream / torch.sqrt(mean_square + eps) * weight.float()).to(update.dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        checks.check_rotate(x, cos, sin)
        first, second = x.float().chunk(2, dim=-1)
        c, s = cos[:, None, :], sin[:, None, :]
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1).to(x.dtype)

    def norm_rotate(self, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        checks.check_norm_rotate(x, weight, cos, sin)
        return self.rotate(self.rms_norm(x.float(), weight, eps), cos, sin).to(x.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        checks.check_gate_up(gate_up)
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)

    def geglu(self, gate_up: Tensor) -> Tensor:
        checks.check_gate_up(gate_up)
        gate, up = gate_up.float().chunk(2, dim=-1)
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return (0.5 * gate * (1 + torch.tanh(inner)) * up).to(gate_up.dtype)

    def store_kv(
        self, key: Tensor, value: Tensor, key_pool: PoolHalf, value_pool: PoolHalf, rows: Tensor, slots: Tensor
    ) -> None:
        checks.check_store_kv(key, value, key_pool, value_pool, rows, slots)
        for fresh, pool in ((key, key_pool), (value, value_pool)):
            if isinstance(pool, QuantisedPool):
                codes, scales = _quantise(fresh, pool.codes.dtype)
                fresh.copy_(codes.float() * scales[..., None])
                # bytes: PyTorch does not index 8-bit floats
                pool.codes.view(torch.uint8)[:, slots] = codes.view(torch.uint8)[rows].transpose(0, 1)
                pool.scales[:, slots] = scales[rows].T
            else:
                pool[:, slots] = fresh[rows].transpose(0, 1)

    def plan(self, table: SpanTable) -> ReferencePlan:
        reach = checks.check_spans(table)
        span_of_key = np.repeat(np.arange(table.num_spans), table.key_tokens)
        offset = np.arange(len(span_of_key)) - (np.cumsum(table.key_tokens) - table.key_tokens)[span_of_key]
        along = table.key_lo[span_of_key] + offset
        from_pool = table.from_pool[span_of_key]
        source = along.astype(np.int32)
        block, in_block = np.divmod(along[from_pool], table.block_size)
        source[from_pool] = table.block_ids[block] * table.block_size + in_block
        rows = np.arange(table.num_queries)[:, None]
        in_span = (rows >= table.query_lo[span_of_key]) & (rows < table.query_hi[span_of_key])
        distance = table.positions[:, None] - (table.key_position[span_of_key] + offset)
        return ReferencePlan(
            num_queries=table.num_queries,
            reach=reach,
            from_pool=from_pool,
            source=source,
            visible=in_span & ~(table.causal[span_of_key] & (distance < 0)),
            distance=distance.astype(np.int32),
        )

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
        plan = checks.own_plan(plan, ReferencePlan)
        checks.check_attend(
            query, key, value, key_pool, value_pool, shape, num_queries=plan.num_queries, reach=plan.reach
        )
        visible = plan.visible if shape.window is None else plan.visible & (plan.distance < shape.window)
        mask = torch.from_numpy(visible).to(query.device)
        keys = _gather(key, key_pool, plan, num_heads=shape.num_heads)
        values = _gather(value, value_pool, plan, num_heads=shape.num_heads)
        scores = torch.einsum("qhd,hkd->hqk", query.float(), keys) * shape.scale
        scores = _capped(scores, shape.soft_cap)
        # a row that sees nothing must give 0; softmax of only -inf would give NaN
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1).masked_fill(~mask, 0.0)
        return torch.einsum("hqk,hkd->qhd", weights, values).to(query.dtype)

    def label_logits(self, hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_label_logits(hidden, head, label_ids, soft_cap)
        return _capped(torch.einsum("rd,rcd->rc", hidden, head[label_ids].float()), soft_cap)

    def log_sum_exp(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_log_sum_exp(hidden, head, soft_cap)
        total = torch.full((hidden.shape[0],), float("-inf"), device=hidden.device)
        for low in range(0, head.shape[0], _VOCABULARY_CHUNK):
            part = head[low : low + _VOCABULARY_CHUNK]
            total = torch.logaddexp(total, _capped(hidden @ part.float().T, soft_cap).logsumexp(dim=-1))
        return total

    def vocabulary_logits(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_log_sum_exp(hidden, head, soft_cap)
        return _capped(hidden @ head.float().T, soft_cap)


def _capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    return logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)


def _quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes ``[T, H_kv, D]`` and scales ``[T, H_kv]`` of keys or values."""
    wide = x.float()
    scales = wide.abs().amax(dim=-1) / CODE_LIMIT[dtype]
    scales = torch.where(wide.isfinite().all(dim=-1), scales, torch.nan)
    ratio = (wide / torch.where(scales > 0, scales, 1.0)[..., None]).nan_to_num()
    return (torch.round(ratio) if dtype == torch.int8 else ratio).to(dtype), scales


def _gather(fresh: Tensor, pool: PoolHalf, plan: ReferencePlan, *, num_heads: int) -> Tensor:
    """Keys or values of all spans, one row per query head: ``[H, keys, D]`` float32."""
    from_pool = torch.from_numpy(plan.from_pool).to(fresh.device)
    source = torch.from_numpy(plan.source).long().to(fresh.device)
    slots = source[from_pool]
    if isinstance(pool, QuantisedPool):
        codes = pool.codes.view(torch.uint8)[:, slots].view(pool.codes.dtype)
        cached = codes.float() * pool.scales[:, slots, None]
    else:
        cached = pool[:, slots].float()
    num_kv_heads, head_dim = fresh.shape[1:]
    gathered = torch.empty(num_kv_heads, len(source), head_dim, device=fresh.device)
    gathered[:, from_pool] = cached
    gathered[:, ~from_pool] = fresh[source[~from_pool]].transpose(0, 1).float()
    return gathered.repeat_interleave(num_heads // num_kv_heads, dim=0)


def _rounded_linear(weight: Weight) -> LinearOp:
    """A product of turned factors in 8 bits."""
    rounded = _in_8_bits(_turned(dense(weight).double()))

    def linear(x: Tensor) -> Tensor:
        return (_in_8_bits(_turned(x.double())) @ rounded.T).to(x.dtype)

    return linear


def _turned(rows: Tensor) -> Tensor:
    """Each 64 inputs times a matrix with the sign of the parity of the bits that row and column share, over 8."""
    signs = [[1 - 2 * ((i & j).bit_count() % 2) for j in range(64)] for i in range(64)]
    matrix = torch.tensor(signs, dtype=rows.dtype, device=rows.device) / 8
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 64))
    return (padded.view(-1, 64) @ matrix).view(padded.shape)


def _in_8_bits(rows: Tensor) -> Tensor:
    """What is left of each row in 8 bits, ``float64``."""
    wide = rows.double()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    step = torch.where(largest == 0, 1, largest) / 127
    return (wide / step).round() * step
