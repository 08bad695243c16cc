"""The contract between the engine and the operations of a step.

The engine describes a step once, as host arrays (:class:`SpanTable`); a kernel set turns
the description into whatever its device wants (:meth:`KernelSet.plan`) and reuses it in
every layer. Letters in shapes: ``T`` packed tokens of the step, ``Q`` query rows
(``Q == T`` except in the last layer, where only rows that are read remain), ``M`` spans,
``H`` query heads, ``H_kv`` KV heads, ``D`` head size, ``S`` slots of the pool, ``V``
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.weights import Weight

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

LinearOp = Callable[[Tensor], Tensor]
"""Maps ``[T, in]`` to ``[T, out]`` in the dtype of its input."""

SublayerOp = Callable[[Tensor, Tensor], Tensor]
"""Takes the residual stream ``[T, d]`` float32, dense, and an update ``[T, d]``: adds the update
to the stream in place, norms the sum, and gives what it makes of that, ``[T, out]`` in the dtype
of the update."""

Activation = Literal["silu", "gelu_tanh"]
"""What opens a gate."""


class KernelInputError(ValueError):
    """A shape, dtype, layout or value breaks the contract of the operation that was called."""


CODE_LIMIT = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The dtypes of quantised keys and values, each with its greatest code."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantisedPool:
    """The keys or the values of one layer in 8 bits: the numbers are ``codes * scales``.

    The scale of a token and head is the greatest magnitude of its ``D`` numbers over the greatest
    code, and a code is a number over its scale, rounded to the nearest. A row that is not finite
    has the scale NaN.

    Args:
        codes: ``[H_kv, S, D]``, a dtype of :data:`CODE_LIMIT`.
        scales: ``[H_kv, S]`` float32, dense along ``S``.
    """

    codes: Tensor
    scales: Tensor

    @property
    def num_slots(self) -> int:
        return self.codes.shape[1]


PoolHalf: TypeAlias = Tensor | QuantisedPool
"""The keys or the values of one layer: as they are, ``[H_kv, S, D]``, or in 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTable:
    """Who attends to what in one step; the same for every layer of the model.

    Span ``m`` lets the query rows ``[query_lo[m], query_hi[m])`` attend to a run of
    ``key_tokens[m]`` keys that stand at the positions ``key_position[m] + j``. The keys come
    from the packed K/V of the step (``from_pool[m]`` false: rows ``key_lo[m] + j``) or from
    the pool (true: slot ``block_ids[(key_lo[m] + j) // block_size] * block_size +
    (key_lo[m] + j) % block_size``, that is, ``key_lo`` counts slots along ``block_ids``).
    A query sees key ``j`` of its span unless ``causal[m]`` is set and the key's position is
    greater than its own. Every query row has exactly one causal span: its own trie node.

    Spans are sorted by nothing in particular. The keys of the spans of one query stand at the positions
    from 0 on, each once and without a gap: a span begins at 0 or where another ends whose rows hold its own.
    """

    positions: IntArray  # [Q] absolute position (0-based) of each query row
    query_lo: IntArray  # [M]
    query_hi: IntArray  # [M]
    key_lo: IntArray  # [M] packed row, or slot along block_ids
    key_tokens: IntArray  # [M] at least 1
    key_position: IntArray  # [M]
    from_pool: BoolArray  # [M]
    causal: BoolArray  # [M] only ever set for fresh keys
    block_ids: IntArray  # [any] blocks of all pool spans, end to end
    block_size: int

    @property
    def num_queries(self) -> int:
        return len(self.positions)

    @property
    def num_spans(self) -> int:
        return len(self.query_lo)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What is fixed for a layer: heads, scale, and the two options of Gemma-like models."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None  # a query sees the last `window` positions, itself included
    soft_cap: float | None = None  # logits become soft_cap * tanh(logits / soft_cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """A step of ``queries`` rows of one token, all below one cached prefix of ``keys`` tokens (0: none)."""

    queries: int
    keys: int


class AttentionPlan(Protocol):
    """A span table made ready for one kernel set. Opaque to the engine."""

    @property
    def num_queries(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerOps:
    """What a layer does, of a model without norms between the parts.

    Args:
        turn: Which of the tables of angles query and key are turned by.
    """

    qkv: SublayerOp
    attention_out: LinearOp
    feed_forward: SublayerOp
    shape: AttentionShape
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LastLayerOps:
    """What the last layer does, and the norm behind it; only rows that are read go through all of it.

    Args:
        query: For rows that are read.
        key_value: For all rows; keys, then values.
        norm: ``[d]``, of the rows that are read.
        turn: As of :class:`LayerOps`.
    """

    query: SublayerOp
    key_value: SublayerOp
    attention_out: LinearOp
    feed_forward: SublayerOp
    norm: Tensor
    eps: float
    shape: AttentionShape
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayersInput:
    """A step before the first layer.

    Args:
        stream: ``[T, d]`` float32; layers add to it.
        update: ``[T, d]``; written over.
        turns: Cosines and sines ``[T, D/2]`` float32, for each kind of angles.
        key_pools, value_pools: ``[L, H_kv, S, D]``, of all layers.
        keep_rows, keep_slots: ``[K]`` int64, as of :meth:`KernelSet.store_kv`.
        read_rows: ``[R]`` int64, rows that are read.
        plan: For all layers but the last.
        read_plan: For the last, with the rows that are read as its queries.
    """

    stream: Tensor
    update: Tensor
    turns: Sequence[tuple[Tensor, Tensor]]
    key_pools: Tensor
    value_pools: Tensor
    keep_rows: Tensor
    keep_slots: Tensor
    read_rows: Tensor
    plan: AttentionPlan
    read_plan: AttentionPlan


LayersOp = Callable[[LayersInput], Tensor]
"""Runs layers one after the other, all their operations included; gives the hidden states of the rows that
are read, ``[R, d]`` float32."""


class KernelSet(Protocol):
    """One implementation of every operation. Chosen once, when the engine is built."""

    name: str
    code_dtypes: frozenset[torch.dtype]
    """What the codes of a quantised pool may be on this device; of :data:`CODE_LIMIT`."""

    @property
    def has_int8(self) -> bool:
        """Whether :meth:`pack_feed_forward` works in 8 bits here."""
        ...

    def warm_up(
        self, shape: AttentionShape, dtype: torch.dtype, *, quantised: bool, max_keys: int
    ) -> Sequence[StepSize]:
        """Compile what no step is sure to ask for, and list steps that together ask for all the rest.

        A set that compiles nothing lists none.

        Args:
            dtype: Of the query; ``quantised``: the pool holds codes.
            max_keys: Longest prefix of a row.
        """
        ...

    @property
    def keeps_codes(self) -> bool:
        """Whether what it packs of a :class:`kernels.weights.CodedWeight` in bfloat16 is the codes, not the numbers."""
        ...

    def pack_linear(self, weight: Weight, bias: Tensor | None = None) -> LinearOp:
        """Prepare ``weight`` [out, in] (and ``bias`` [out]) for repeated use; may copy it."""
        ...

    def pack_normed_linear(self, norm: Tensor, eps: float, weight: Weight, bias: Tensor | None = None) -> SublayerOp:
        """:meth:`add_rms_norm` with ``norm`` [in], then the linear layer of ``weight`` [out, in] and ``bias`` [out]."""
        ...

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
        """:meth:`add_rms_norm`, then a gated feed-forward part.

        Args:
            norm: ``[d]``.
            gate_up: ``[2F, d]``, gate first.
            down: ``[d, F]``.
            int8: Round both factors of both products to 8 bits; weights and updates are bfloat16. First the
                inputs of a product are turned, 64 at a time and with zeros behind the last, in the row that comes as
                in the weight: by Sylvester's Hadamard matrix over 8, which is orthogonal and spreads what is large. A
                row of either factor is then a float32 scale times whole numbers up to 127; the scale is the row's
                largest magnitude over 127.

        Raises:
            KernelInputError: ``int8`` where ``has_int8`` is false.
        """
        ...

    def join_layers(self, layers: Sequence[LayerOps], last: LastLayerOps) -> LayersOp | None:
        """All layers, which this set packed, as one operation, with the bits that their own give; None: it has none.

        Args:
            layers: All but the last.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x**2) + eps) * weight`` along the last axis, accumulated in float32.

        Args:
            x: ``[T, d]``; any float dtype, kept in the result.
        """
        ...

    def add_rms_norm(self, stream: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add ``update`` to ``stream`` in place, and give :meth:`rms_norm` of the sum.

        The residual stream of a model is float32 whatever the dtype of its layers: it grows
        large beside what each of them adds, and rounding it would be the largest error of all.

        Args:
            stream: ``[T, d]`` float32, dense.
            update: ``[T, d]``; any float dtype, that of the result.
        """
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding, half-split form: pairs ``(i, i + D/2)`` are turned together.

        Args:
            x: ``[T, H, D]``; the result may be written over it.
            cos, sin: ``[T, D/2]`` float32, the rows of the tables at the tokens' positions.
        """
        ...

    def norm_rotate(self, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        """:meth:`rms_norm` of every head of ``x`` ``[T, H, D]`` with ``weight`` ``[D]``, then :meth:`rotate`."""
        ...

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` of ``[T, 2F]`` (gate first), giving ``[T, F]``."""
        ...

    def geglu(self, gate_up: Tensor) -> Tensor:
        """``gelu(gate) * up`` of ``[T, 2F]`` (gate first), giving ``[T, F]``; GELU by its tanh approximation."""
        ...

    def store_kv(
        self, key: Tensor, value: Tensor, key_pool: PoolHalf, value_pool: PoolHalf, rows: Tensor, slots: Tensor
    ) -> None:
        """Copy the packed rows that are kept into their slots of one layer's pool.

        With a quantised pool, *all* rows of ``key`` and ``value`` are also rounded in place to what
        the pool can hold, so that this step attends to the same numbers as the steps that will
        find them, and reuse changes no score.

        Args:
            key, value: ``[T, H_kv, D]``.
            key_pool, value_pool: ``[H_kv, S, D]``, written at ``slots`` only; both of one kind.
            rows, slots: ``[K]`` int64; slots are distinct, but for rows that are named again with their slot.
        """
        ...

    def plan(self, table: SpanTable) -> AttentionPlan:
        """Turn the description of a step into device metadata; once per step, not per layer."""
        ...

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
        """Softmax attention of every query row over all keys of its spans.

        Args:
            query: ``[Q, H, D]``, rotated. Head ``h`` reads KV head ``h // (H // H_kv)``.
            key, value: ``[T, H_kv, D]``, packed K/V of this step, rotated.
            key_pool, value_pool: ``[H_kv, S, D]``, one layer's view, both of one kind. Slots
                that no span names may hold anything, NaN included.

        Returns:
            ``[Q, H, D]`` in the dtype of ``query``; scores and sums are float32 inside.
        """
        ...

    def label_logits(self, hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None = None) -> Tensor:
        """Logits of a few vocabulary columns.

        Args:
            hidden: ``[R, d]`` float32, after the final norm.
            head: ``[V, d]`` weights of the LM head, any float dtype.
            label_ids: ``[R, C]`` int64 in ``[0, V)``.
            soft_cap: Logits become ``soft_cap * tanh(logits / soft_cap)``.

        Returns:
            ``[R, C]`` float32.
        """
        ...

    def log_sum_exp(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        """Natural log of the softmax denominator over the whole vocabulary, per row.

        The ``[R, V]`` logits are never held at once.

        Args:
            hidden: ``[R, d]`` float32, after the final norm.
            head: ``[V, d]``.
            soft_cap: As for :meth:`label_logits`.

        Returns:
            ``[R]`` float32.
        """
        ...

    def vocabulary_logits(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        """Logits of all columns, for the few rows from which a token is chosen.

        Args:
            hidden: ``[R, d]`` float32, after the final norm.
            head: ``[V, d]``.
            soft_cap: As for :meth:`label_logits`.

        Returns:
            ``[R, V]`` float32.
        """
        ...


class ReplayLayout(Protocol):
    """Where in a stretch of device memory attention finds what it reads of a step, for all steps of one size."""

    @property
    def num_ints(self) -> int:
        """Length of the stretch in int32s."""
        ...

    def plan(self, memory: Tensor) -> AttentionPlan:
        """A plan that attends to whatever step ``memory`` [num_ints] int32 describes when it is run."""
        ...

    def write(self, table: SpanTable, into: IntArray) -> int | None:
        """Describe a step in ``into`` [num_ints], to be copied to the memory of a plan.

        Args:
            table: Has as many query rows as the layout.

        Returns:
            How many ints of ``into``, from the first, the plan reads; None where the step does not fit.
        """
        ...


@runtime_checkable
class ReplayableKernels(KernelSet, Protocol):
    """A kernel set whose launches can be recorded once and replayed for other steps of the same size.

    With a plan of a :class:`ReplayLayout`, no operation of a step asks for anything on the host, and
    what is launched, with what constants, depends on shapes alone.
    """

    def replay_layout(
        self,
        shapes: Collection[AttentionShape],
        dtype: torch.dtype,
        *,
        quantised: bool,
        num_queries: int,
        block_size: int,
        num_slots: int,
    ) -> ReplayLayout:
        """The layout for steps of ``num_queries`` rows on a model with layers of ``shapes``.

        Args:
            dtype: Of the query; ``quantised``: the pool, of ``num_slots`` slots, holds codes.
        """
        ...
