"""Refusals: every operation asks here whether its inputs are as the contract says.

Tensors are judged by shape, dtype and device alone, so no check waits for a device. A span
table lives on the host and is judged by its values too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.api import (
    CODE_LIMIT,
    AttentionShape,
    BoolArray,
    IntArray,
    KernelInputError,
    LastLayerOps,
    LayerOps,
    LayersInput,
    PoolHalf,
    QuantisedPool,
    SpanTable,
)
from kernels.spans import previous_spans
from kernels.weights import CODED_INPUTS, CodedWeight, Weight

Dim = int | str
"""A wanted extent: a number, or a letter that stands for any number."""

_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanReach:
    """How much memory a span table names: the smallest sizes that :func:`check_attend` accepts."""

    fresh_rows: int
    slots: int


def check_rms_norm(x: Tensor, weight: Tensor) -> None:
    """Accept ``x`` [T, d] or [T, H, d] with ``weight`` [d]."""
    if x.dim() not in (2, 3):
        raise KernelInputError(f"x: [T, d] or [T, H, d] wanted, got {list(x.shape)}")
    _check_float("x", x)
    _check_float("weight", weight)
    _check_shape("weight", weight, [x.shape[-1]])
    _check_device([("x", x), ("weight", weight)])


def check_add_rms_norm(stream: Tensor, update: Tensor, weight: Tensor) -> None:
    """Accept a dense float32 ``stream`` [T, d] with ``update`` [T, d] and ``weight`` [d]."""
    _check_shape("stream", stream, ["T", "d"])
    _check_dtype("stream", stream, torch.float32)
    if not stream.is_contiguous():
        raise KernelInputError(f"stream: a dense tensor wanted, got strides {list(stream.stride())}")
    _check_shape("update", update, stream.shape)
    _check_float("update", update)
    _check_shape("weight", weight, (stream.shape[1],))
    _check_float("weight", weight)
    _check_device([("stream", stream), ("update", update), ("weight", weight)])


def check_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Accept ``x`` [T, H, D] with float32 tables [T, D/2]; D is even."""
    _check_shape("x", x, ["T", "H", "D"])
    _check_float("x", x)
    if x.shape[2] % 2:
        raise KernelInputError(f"x: an even head size wanted, got {x.shape[2]}")
    for name, table in (("cos", cos), ("sin", sin)):
        _check_shape(name, table, (x.shape[0], x.shape[2] // 2))
        _check_dtype(name, table, torch.float32)
    _check_device([("x", x), ("cos", cos), ("sin", sin)])


def check_norm_rotate(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Accept what :func:`check_rotate` does, with ``weight`` [D]."""
    check_rotate(x, cos, sin)
    check_rms_norm(x, weight)


def check_gate_up(gate_up: Tensor) -> None:
    """Accept ``gate_up`` [T, 2F]."""
    _check_shape("gate_up", gate_up, ["T", "2F"])
    _check_float("gate_up", gate_up)
    if gate_up.shape[1] % 2:
        raise KernelInputError(f"gate_up: an even width wanted, got {gate_up.shape[1]}")


def check_linear(weight: Weight, bias: Tensor | None) -> None:
    """Accept ``weight`` [out, in] with ``bias`` [out] or none."""
    _check_shape("weight", weight, ["out", "in"])
    _check_float("weight", weight)
    if isinstance(weight, CodedWeight):
        _check_coded_weight(weight)
    if bias is not None:
        _check_shape("bias", bias, [weight.shape[0]])
        _check_device([("weight", weight), ("bias", bias)])


def check_linear_input(x: Tensor, inputs: int, dtype: torch.dtype) -> None:
    """Accept what a packed layer of so many ``inputs`` reads: ``x`` [T, in] of its dtype with dense rows."""
    if x.shape[1:] != (inputs,):
        _check_shape("x", x, ["T", inputs])
    _check_dtype("x", x, dtype)
    if x.stride(1) != 1 and x.shape[1] > 1:
        raise KernelInputError(f"x: dense rows wanted, got strides {list(x.stride())}")


def check_normed_linear(norm: Tensor, weight: Weight, bias: Tensor | None) -> None:
    """Accept what :func:`check_linear` does, with ``norm`` [in]."""
    check_linear(weight, bias)
    _check_shape("norm", norm, [weight.shape[1]])
    _check_device([("norm", norm), ("weight", weight)])


def check_feed_forward(norm: Tensor, gate_up: Weight, down: Weight, *, int8: bool) -> None:
    """Accept ``gate_up`` [2F, d] and ``down`` [d, F] with ``norm`` [d]; to be rounded to ``int8``, in bfloat16."""
    check_linear(gate_up, None)
    _check_shape("gate_up", gate_up, [2 * down.shape[1], len(down)])
    check_linear(down, None)
    _check_shape("norm", norm, [len(down)])
    _check_device([("norm", norm), ("gate_up", gate_up), ("down", down)])
    for name, weight in (("gate_up", gate_up), ("down", down)):
        if int8 and weight.dtype != torch.bfloat16:
            raise KernelInputError(f"{name}: {torch.bfloat16} wanted for products in 8 bits, got {weight.dtype}")


def check_store_kv(
    key: Tensor, value: Tensor, key_pool: PoolHalf, value_pool: PoolHalf, rows: Tensor, slots: Tensor
) -> None:
    """Accept packed K/V [T, H_kv, D], pools [H_kv, S, D] and int64 indices [K]."""
    _check_kv(key, value, key_pool, value_pool)
    _check_shape("rows", rows, ["K"])
    _check_shape("slots", slots, [rows.shape[0]])
    _check_dtype("rows", rows, torch.int64)
    _check_dtype("slots", slots, torch.int64)
    _check_device([("key", key), ("rows", rows), ("slots", slots)])


def check_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pool: PoolHalf,
    value_pool: PoolHalf,
    shape: AttentionShape,
    *,
    num_queries: int,
    reach: SpanReach,
) -> None:
    """Accept tensors that fit the shape of the layer and hold every key the plan names."""
    if shape.num_heads % shape.num_kv_heads:
        raise KernelInputError(
            f"shape.num_heads: a multiple of num_kv_heads wanted, got {shape.num_heads} and {shape.num_kv_heads}"
        )
    _check_shape("query", query, [num_queries, shape.num_heads, shape.head_dim])
    _check_shape("key", key, ["T", shape.num_kv_heads, shape.head_dim])
    _check_kv(key, value, key_pool, value_pool)
    _check_dtype("query", query, key.dtype)
    _check_device([("key", key), ("query", query)])
    if key.shape[0] < reach.fresh_rows:
        raise KernelInputError(f"key: {reach.fresh_rows} packed rows or more wanted by the plan, got {key.shape[0]}")
    num_slots = key_pool.num_slots if isinstance(key_pool, QuantisedPool) else key_pool.shape[1]
    if num_slots < reach.slots:
        raise KernelInputError(f"key_pool: {reach.slots} slots or more wanted by the plan, got {num_slots}")
    if shape.window is not None and shape.window < 1:
        raise KernelInputError(f"shape.window: at least 1 wanted, got {shape.window}")
    if shape.soft_cap is not None and not shape.soft_cap > 0:
        raise KernelInputError(f"shape.soft_cap: a positive number wanted, got {shape.soft_cap}")


def check_layers(
    step: LayersInput,
    layers: Sequence[LayerOps],
    last: LastLayerOps,
    *,
    num_queries: int,
    num_read: int,
    reaches: Sequence[SpanReach],
) -> None:
    """Accept a step for these layers whose keys the plans name."""
    rows, hidden, shape, dtype = num_queries, last.norm.shape[0], last.shape, step.update.dtype
    num_turns = 1 + max([last.turn, *[layer.turn for layer in layers]])
    if len(step.turns) < num_turns:
        raise KernelInputError(f"turns: {num_turns} kinds of angles wanted, got {len(step.turns)}")
    num_layers, _, num_slots, _ = step.key_pools.shape
    if num_layers != len(layers) + 1:
        raise KernelInputError(f"key_pools: pools of {len(layers) + 1} layers wanted, got {num_layers}")
    _check_shape("stream", step.stream, (rows, hidden))
    _check_shape("update", step.update, (rows, hidden))
    _check_dtype("stream", step.stream, torch.float32)
    dense = [("stream", step.stream), ("update", step.update)]
    for name, pools in (("key_pools", step.key_pools), ("value_pools", step.value_pools)):
        _check_shape(name, pools, (num_layers, shape.num_kv_heads, num_slots, shape.head_dim))
        _check_dtype(name, pools, dtype)
        dense.append((name, pools))
    for name, table in (("turns", table) for turn in step.turns for table in turn):
        _check_shape(name, table, (rows, shape.head_dim // 2))
        _check_dtype(name, table, torch.float32)
        dense.append((name, table))
    num_kept = step.keep_rows.shape[0]
    for name, index, count in (
        ("keep_rows", step.keep_rows, num_kept),
        ("keep_slots", step.keep_slots, num_kept),
        ("read_rows", step.read_rows, num_read),
    ):
        _check_shape(name, index, (count,))
        _check_dtype(name, index, torch.int64)
        dense.append((name, index))
    for name, tensor in dense:
        if not tensor.is_contiguous():
            raise KernelInputError(f"{name}: a dense tensor wanted, got strides {list(tensor.stride())}")
    _check_device(dense)
    for reach in reaches:
        if rows < reach.fresh_rows:
            raise KernelInputError(f"update: {reach.fresh_rows} rows or more wanted by the plan, got {rows}")
        if num_slots < reach.slots:
            raise KernelInputError(f"key_pools: {reach.slots} slots or more wanted by the plan, got {num_slots}")


def own_plan(plan: object, kind: type[_Plan]) -> _Plan:
    """The plan, if the kernel set that is asked to use it made it.

    Raises:
        KernelInputError: another kernel set made it.
    """
    if not isinstance(plan, kind):
        raise KernelInputError(f"plan: a {kind.__name__} wanted, got a {type(plan).__name__}")
    return plan


def check_label_logits(hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None) -> None:
    """Accept ``hidden`` [R, d] float32, ``head`` [V, d], ``label_ids`` [R, C] int64, a positive cap or none."""
    check_log_sum_exp(hidden, head, soft_cap)
    _check_shape("label_ids", label_ids, [hidden.shape[0], "C"])
    _check_dtype("label_ids", label_ids, torch.int64)
    _check_device([("hidden", hidden), ("label_ids", label_ids)])


def check_log_sum_exp(hidden: Tensor, head: Tensor, soft_cap: float | None) -> None:
    """Accept ``hidden`` [R, d] float32, ``head`` [V, d], a positive cap or none."""
    _check_shape("hidden", hidden, ["R", "d"])
    _check_dtype("hidden", hidden, torch.float32)
    _check_shape("head", head, ["V", hidden.shape[1]])
    _check_float("head", head)
    _check_device([("hidden", hidden), ("head", head)])
    if soft_cap is not None and not soft_cap > 0:
        raise KernelInputError(f"soft_cap: a positive number wanted, got {soft_cap}")


def check_span_table(table: SpanTable, *, num_fresh: int, num_slots: int) -> SpanReach:
    """Refuse a table that contradicts itself or names memory outside a step and a pool.

    Args:
        table: As the engine built it.
        num_fresh: Rows of packed K/V in the step.
        num_slots: Slots of the pool.

    Returns:
        What the table reaches, at most ``num_fresh`` rows and ``num_slots`` slots.

    Raises:
        KernelInputError: names the field, the span, the value and the limit.
    """
    reach = check_spans(table)
    if reach.fresh_rows > num_fresh:
        raise KernelInputError(f"key_lo: fresh keys within {num_fresh} packed rows wanted, got {reach.fresh_rows}")
    if reach.slots > num_slots:
        raise KernelInputError(f"block_ids: blocks within {num_slots} slots wanted, got {reach.slots}")
    return reach


def check_spans(table: SpanTable) -> SpanReach:
    """Refuse a table that contradicts itself, whatever the step and the pool.

    Raises:
        KernelInputError: names the field, the span, the value and the limit.
    """
    names = ("query_lo", "query_hi", "key_lo", "key_tokens", "key_position", "from_pool", "causal")
    for name in names:
        column = getattr(table, name)
        if column.shape != (table.num_spans,):
            raise KernelInputError(f"{name}: shape [{table.num_spans}] wanted, got {list(column.shape)}")
    if table.block_size < 1:
        raise KernelInputError(f"block_size: at least 1 wanted, got {table.block_size}")
    pool = table.from_pool
    key_hi = table.key_lo.astype(np.int64) + table.key_tokens
    num_named = len(table.block_ids) * table.block_size
    _refuse_spans(table.query_lo < 0, table.query_lo, "query_lo: at least 0")
    _refuse_spans(table.query_hi < table.query_lo, table.query_hi, "query_hi: at least query_lo")
    _refuse_spans(table.query_hi > table.num_queries, table.query_hi, f"query_hi: at most {table.num_queries}")
    _refuse_spans(table.key_tokens < 1, table.key_tokens, "key_tokens: at least 1")
    _refuse_spans(table.key_lo < 0, table.key_lo, "key_lo: at least 0")
    _refuse_spans(table.key_position < 0, table.key_position, "key_position: at least 0")
    _refuse_spans(pool & (key_hi > num_named), key_hi, f"key_lo + key_tokens of a pool span: at most {num_named}")
    _refuse_spans(pool & table.causal, pool, "causal: only on spans of fresh keys")
    if len(table.block_ids) and table.block_ids.min() < 0:
        raise KernelInputError(f"block_ids: at least 0 wanted, got {table.block_ids.min()}")
    _check_one_causal_span(table)
    some = table.query_lo < table.query_hi
    gap = some & (table.key_position > 0) & (previous_spans(table) < 0)
    _refuse_spans(gap, table.key_position, "key_position: 0 or the end of another span of the same rows")
    return SpanReach(
        fresh_rows=int(key_hi[~pool].max(initial=0)),
        slots=(int(table.block_ids.max(initial=-1)) + 1) * table.block_size,
    )


def _check_one_causal_span(table: SpanTable) -> None:
    """Every query row stands in exactly one causal span: its own trie node."""
    steps = np.zeros(table.num_queries + 1, np.int64)
    np.add.at(steps, table.query_lo[table.causal], 1)
    np.add.at(steps, table.query_hi[table.causal], -1)
    count = np.cumsum(steps)[:-1]
    wrong = np.flatnonzero(count != 1)
    if len(wrong):
        raise KernelInputError(f"causal: 1 causal span for query row {wrong[0]} wanted, got {count[wrong[0]]}")


def _refuse_spans(wrong: BoolArray, got: IntArray | BoolArray | npt.NDArray[np.int64], wanted: str) -> None:
    spans = np.flatnonzero(wrong)
    if len(spans):
        raise KernelInputError(f"{wanted} wanted, got {got[spans[0]]} in span {spans[0]}")


def _check_kv(key: Tensor, value: Tensor, key_pool: PoolHalf, value_pool: PoolHalf) -> None:
    _check_shape("key", key, ["T", "H_kv", "D"])
    _check_float("key", key)
    _check_shape("value", value, list(key.shape))
    _check_dtype("value", value, key.dtype)
    if isinstance(key_pool, QuantisedPool) is not isinstance(value_pool, QuantisedPool):
        raise KernelInputError(
            f"value_pool: a {type(key_pool).__name__} as key_pool is wanted, got a {type(value_pool).__name__}"
        )
    num_slots: Dim = "S"
    for name, half in (("key_pool", key_pool), ("value_pool", value_pool)):
        codes = half.codes if isinstance(half, QuantisedPool) else half
        _check_shape(name, codes, [key.shape[1], num_slots, key.shape[2]])
        num_slots = codes.shape[1]
        if isinstance(half, QuantisedPool):
            _check_codes(name, half)
        else:
            _check_dtype(name, half, key.dtype)
        _check_device([("key", key), ("value", value), (name, codes)])


def _check_codes(name: str, half: QuantisedPool) -> None:
    if half.codes.dtype not in CODE_LIMIT:
        raise KernelInputError(f"{name}: codes in one of {sorted(map(str, CODE_LIMIT))} wanted, got {half.codes.dtype}")
    _check_shape(f"{name}.scales", half.scales, list(half.codes.shape[:2]))
    _check_dtype(f"{name}.scales", half.scales, torch.float32)
    if half.scales.shape[1] > 1 and half.scales.stride(1) != 1:
        raise KernelInputError(f"{name}.scales: dense slots wanted, got strides {list(half.scales.stride())}")
    _check_device([(name, half.codes), (f"{name}.scales", half.scales)])


def _check_coded_weight(weight: CodedWeight) -> None:
    if weight.bits not in (4, 8):
        raise KernelInputError(f"weight: codes in 4 or 8 bits wanted, got {weight.bits}")
    rows, inputs = weight.shape
    if inputs % CODED_INPUTS:
        raise KernelInputError(f"weight: codes of a multiple of {CODED_INPUTS} inputs wanted, got {inputs}")
    _check_dtype("weight.codes", weight.codes, torch.int8)
    for name, numbers in (("weight.scales", weight.scales), ("weight.offsets", weight.offsets)):
        _check_shape(name, numbers, [rows, inputs // CODED_INPUTS])
        _check_dtype(name, numbers, torch.float32)
        _check_device([("weight.codes", weight.codes), (name, numbers)])


def _check_shape(name: str, tensor: Weight, wanted: Sequence[Dim]) -> None:
    # this runs for every tensor of every launch: tuples compare at once, and a generator would cost three times as much
    got = tensor.shape
    if got == wanted:
        return
    fits = len(got) == len(wanted)
    for want, extent in zip(wanted, got, strict=False):
        if want != extent and isinstance(want, int):
            fits = False
    if not fits:
        words = ", ".join(str(w) for w in wanted)
        raise KernelInputError(f"{name}: shape [{words}] wanted, got {list(got)}")


def _check_dtype(name: str, tensor: Tensor, wanted: torch.dtype) -> None:
    if tensor.dtype != wanted:
        raise KernelInputError(f"{name}: {wanted} wanted, got {tensor.dtype}")


def _check_float(name: str, tensor: Weight) -> None:
    if not tensor.dtype.is_floating_point:
        raise KernelInputError(f"{name}: a float dtype wanted, got {tensor.dtype}")


def _check_device(named: Sequence[tuple[str, Weight]]) -> None:
    for (first_name, first), (name, tensor) in pairwise(named):
        if tensor.device != first.device:
            raise KernelInputError(f"{name}: the device of {first_name}, {first.device}, wanted, got {tensor.device}")
