"""The kernel set for NVIDIA GPUs, written in Triton.

Launches only: no operation waits for the device, and every operation of a step goes to the
current stream. With ``TRITON_INTERPRET=1`` set before this package is imported, the same
kernels run on the CPU, slowly and right for float32 and float16 (the interpreter multiplies
the bit patterns of bfloat16, triton-lang/triton#11584, so it is refused there).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
import triton
from torch import Tensor

from kernels import checks
from kernels.api import (
    AttentionPlan,
    AttentionShape,
    KernelInputError,
    LinearOp,
    PoolHalf,
    QuantisedPool,
    SpanTable,
    StepSize,
)
from kernels.composed import ComposedLayers, vocabulary_logits
from kernels.triton import label_readout
from kernels.triton.gated import gated
from kernels.triton.merge_partials import merge_partials
from kernels.triton.metadata import TritonPlan
from kernels.triton.plan import Geometry
from kernels.triton.quantise_kv import store_quantised
from kernels.triton.replay import ReplayPlan, TritonReplayLayout
from kernels.triton.rms_norm import rms_norm
from kernels.triton.rotary import rotate
from kernels.triton.store_kv import store_kv, store_kv_kernel
from kernels.triton.tree_attention import tree_attention
from kernels.triton.tuning import FLOAT8_ARCH, INTERPRETED, Launch, LaunchKey, choose_launch, reachable
from kernels.weights import Weight, dense

# a multiprocessor holds about two programs, so fewer programs than this leave some idle
_PROGRAMS_PER_MULTIPROCESSOR = 2

_INTERPRETED_DTYPES = frozenset({torch.float32, torch.float16})
_DTYPES = _INTERPRETED_DTYPES | {torch.bfloat16}


class TritonKernels(ComposedLayers):
    """Implements :class:`kernels.api.KernelSet` on one CUDA device, or interpreted.

    Judge: ``kernels.reference.ReferenceKernels``.

    Args:
        device: A CUDA device; a CPU only where kernels are interpreted.
        choose: Picks the attention launch; the table of ``kernels.triton.tuning`` by default.
        split_below: Programs below which long tiles are split along their keys; None takes
            what fills the device, 0 never splits.

    Raises:
        KernelInputError: the device is a CPU and the kernels are compiled.
    """

    name = "triton"
    has_int8 = False
    keeps_codes = False

    def __init__(
        self,
        device: torch.device | str,
        *,
        choose: Callable[[LaunchKey], Launch] = choose_launch,
        split_below: int | None = None,
    ) -> None:
        self._device = torch.device(device)
        self._choose = choose
        if self._device.type == "cuda":
            facts = torch.cuda.get_device_properties(self._device)
            self._arch = facts.major * 10 + facts.minor
            fills = _PROGRAMS_PER_MULTIPROCESSOR * facts.multi_processor_count
        elif interpreted():
            self._arch, fills = INTERPRETED, 1
        else:
            raise KernelInputError(f"device: a CUDA device wanted, got {self._device} without TRITON_INTERPRET=1")
        self.code_dtypes = frozenset({torch.int8, torch.float8_e4m3fn} if self._arch >= FLOAT8_ARCH else {torch.int8})
        self._split_below = fills if split_below is None else split_below

    def warm_up(
        self, shape: AttentionShape, dtype: torch.dtype, *, quantised: bool, max_keys: int
    ) -> tuple[StepSize, ...]:
        like = self._launch_key(shape, dtype, queries=1, longest_span=1, quantised=quantised)
        keys = reachable(like, max_span=max_keys, choose=self._choose)
        # whether a tile is split depends on its neighbours, so the merge is asked for here
        for tile_rows in {self._choose(key).tile_rows for key in keys}:
            self._merge_nothing(shape, dtype, tile_rows)
        return tuple(StepSize(queries=key.rows // key.group, keys=key.longest_span) for key in keys)

    def _merge_nothing(self, shape: AttentionShape, dtype: torch.dtype, tile_rows: int) -> None:
        partial = torch.zeros(1, shape.num_kv_heads, tile_rows, shape.head_dim, device=self._device)
        sums = torch.zeros(partial.shape[:3], device=self._device)
        out = torch.empty(1, shape.num_heads, shape.head_dim, dtype=dtype, device=self._device)
        no_tokens = torch.zeros(1, 4, dtype=torch.int32, device=self._device)
        merge_partials(out, partial, sums, sums, no_tokens, group=shape.num_heads // shape.num_kv_heads)

    def pack_linear(self, weight: Weight, bias: Tensor | None = None) -> LinearOp:
        checks.check_linear(weight, bias)
        numbers = dense(weight).contiguous()
        return lambda x: torch.nn.functional.linear(x, numbers, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        checks.check_rms_norm(x, weight)
        self._check_readable(x=x, weight=weight)
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, stream: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        checks.check_add_rms_norm(stream, update, weight)
        self._check_readable(update=update, weight=weight)
        return rms_norm(update, weight, eps, stream)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        checks.check_rotate(x, cos, sin)
        self._check_readable(x=x)
        return rotate(x, cos.contiguous(), sin.contiguous())

    def norm_rotate(self, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        checks.check_norm_rotate(x, weight, cos, sin)
        self._check_readable(x=x, weight=weight)
        return rotate(x, cos.contiguous(), sin.contiguous(), weight, eps)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        checks.check_gate_up(gate_up)
        self._check_readable(gate_up=gate_up)
        return gated(gate_up, gelu=False)

    def geglu(self, gate_up: Tensor) -> Tensor:
        checks.check_gate_up(gate_up)
        self._check_readable(gate_up=gate_up)
        return gated(gate_up, gelu=True)

    def store_kv(
        self, key: Tensor, value: Tensor, key_pool: PoolHalf, value_pool: PoolHalf, rows: Tensor, slots: Tensor
    ) -> None:
        checks.check_store_kv(key, value, key_pool, value_pool, rows, slots)
        self._check_readable(key=key, value=value)
        self._check_pools(key_pool, value_pool)
        rows, slots = rows.contiguous(), slots.contiguous()
        if isinstance(key_pool, QuantisedPool) and isinstance(value_pool, QuantisedPool):
            store_quantised(key, value, key_pool, value_pool, rows, slots)
        elif isinstance(key_pool, Tensor) and isinstance(value_pool, Tensor):
            store_kv(key, value, key_pool, value_pool, rows, slots)

    def plan(self, table: SpanTable) -> TritonPlan:
        return TritonPlan(table=table, reach=checks.check_spans(table), device=self._device)

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
        plan = _own_plan(plan)
        checks.check_attend(
            query, key, value, key_pool, value_pool, shape, num_queries=plan.num_queries, reach=plan.reach
        )
        self._check_readable(query=query, key=key, value=value)
        self._check_pools(key_pool, value_pool)
        if plan.num_queries == 0:
            return torch.empty_like(query)
        launch = self._choose(
            self._launch_key(
                shape,
                query.dtype,
                queries=plan.num_queries,
                longest_span=plan.longest_span,
                quantised=isinstance(key_pool, QuantisedPool),
            )
        )
        step = plan.cut(self._geometry(shape, launch))
        return tree_attention(query, key, value, key_pool, value_pool, step, shape, launch)

    def replay_layout(
        self,
        shapes: Collection[AttentionShape],
        dtype: torch.dtype,
        *,
        quantised: bool,
        num_queries: int,
        block_size: int,
        num_slots: int,
    ) -> TritonReplayLayout:
        """See :meth:`kernels.api.ReplayableKernels.replay_layout`; the launch is that of steps with long spans."""
        launches = {
            shape: self._choose(
                self._launch_key(shape, dtype, queries=num_queries, longest_span=num_slots, quantised=quantised)
            )
            for shape in shapes
        }
        return TritonReplayLayout(
            [self._geometry(shape, launch) for shape, launch in launches.items()],
            num_queries=num_queries,
            longest_span=num_slots,
            block_size=block_size,
            num_slots=num_slots,
        )

    def _geometry(self, shape: AttentionShape, launch: Launch) -> Geometry:
        return Geometry(
            tile_tokens=launch.tile_rows * shape.num_kv_heads // shape.num_heads,
            tile_keys=launch.tile_keys,
            window=shape.window,
            target_units=-(-self._split_below // shape.num_kv_heads),
        )

    def _launch_key(
        self, shape: AttentionShape, dtype: torch.dtype, *, queries: int, longest_span: int, quantised: bool
    ) -> LaunchKey:
        group = shape.num_heads // shape.num_kv_heads
        return LaunchKey(
            arch=self._arch,
            head_dim=shape.head_dim,
            element_bytes=dtype.itemsize,
            group=group,
            rows=queries * group,
            longest_span=longest_span,
            quantised=quantised,
        )

    def label_logits(self, hidden: Tensor, head: Tensor, label_ids: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_label_logits(hidden, head, label_ids, soft_cap)
        self._check_readable(hidden=hidden, head=head)
        return label_readout.label_logits(hidden, head, label_ids.contiguous(), soft_cap)

    def log_sum_exp(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_log_sum_exp(hidden, head, soft_cap)
        self._check_readable(hidden=hidden, head=head)
        return label_readout.log_sum_exp(hidden, head, soft_cap)

    def vocabulary_logits(self, hidden: Tensor, head: Tensor, soft_cap: float | None = None) -> Tensor:
        checks.check_log_sum_exp(hidden, head, soft_cap)
        return vocabulary_logits(hidden, head, soft_cap)

    def _check_pools(self, *pools: PoolHalf) -> None:
        for name, pool in zip(("key_pool", "value_pool"), pools, strict=True):
            if isinstance(pool, QuantisedPool):
                _check_dense(name, pool.codes)
                # the interpreter reads 8-bit floats right, though it rounds them wrongly
                if pool.codes.dtype not in self.code_dtypes and self._arch != INTERPRETED:
                    raise KernelInputError(f"{name}: 8-bit floats need arch {FLOAT8_ARCH} or newer, got {self._arch}")
            else:
                self._check_readable(**{name: pool})

    def _check_readable(self, **tensors: Tensor) -> None:
        """Kernels read rows whose last axis is dense, in dtypes that the machine multiplies."""
        known = _INTERPRETED_DTYPES if self._arch == INTERPRETED else _DTYPES
        for name, tensor in tensors.items():
            if tensor.dtype not in known:
                raise KernelInputError(f"{name}: one of {sorted(map(str, known))} wanted, got {tensor.dtype}")
            _check_dense(name, tensor)


def _own_plan(plan: AttentionPlan) -> TritonPlan | ReplayPlan:
    return plan if isinstance(plan, ReplayPlan) else checks.own_plan(plan, TritonPlan)


def _check_dense(name: str, tensor: Tensor) -> None:
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelInputError(f"{name}: a dense last axis wanted, got strides {list(tensor.stride())}")


def interpreted() -> bool:
    """Whether this process interprets kernels on the CPU."""
    return not isinstance(store_kv_kernel, triton.JITFunction)
