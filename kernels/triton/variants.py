"""The kernels that are shipped, as the launchers specialise them: what a report compiles.

Attention is listed once per launch that the tuning table can give on an architecture, at the
largest head size that the launch serves, and again with what else changes its code: a small
head with an odd group, a sliding window with capped logits, and pools of 8-bit codes. The
element-wise kernels are listed at the sizes of a 0.6B model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.api import CODE_LIMIT, AttentionShape
from kernels.triton import (
    gated,
    label_readout,
    merge_partials,
    quantise_kv,
    rms_norm,
    rotary,
    store_kv,
    tree_attention,
)
from kernels.triton.tuning import FLOAT8_ARCH, RULES, Launch, LaunchKey, choose_launch, reachable

ARCHITECTURES = (80, 90, 100)

_ELEMENT = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "i8", torch.float8_e4m3fn: "fp8e4nv"}
_MANY = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One specialisation of one kernel.

    Args:
        name: Unique among the variants of an architecture.
        element: Triton's name of the dtype of pointers that ``pointers`` does not list.
        bulk: Whether the launch is meant to reach the widest matrix instruction.
    """

    name: str
    arch: int
    kernel: Any
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int = 3
    element: str = "bf16"
    pointers: Mapping[str, str] = field(default_factory=dict)
    bulk: bool = False


def shipped(arch: int) -> list[Variant]:
    """Every variant for one architecture of :data:`ARCHITECTURES`."""
    return [*_attention(arch), *_quantised(arch), *_others(arch)]


def _attention(arch: int) -> Iterator[Variant]:
    groups = sorted({2, *(rule.group for rule in RULES if rule.group is not None and rule.min_arch == arch)})
    seen: set[tuple[torch.dtype, int, Launch]] = set()
    for dtype, group, head_dim in itertools.product((torch.bfloat16, torch.float32), groups, (256, 128, 64)):
        like = LaunchKey(
            arch=arch, head_dim=head_dim, element_bytes=dtype.itemsize, group=group, rows=group, longest_span=1
        )
        for launch in map(choose_launch, reachable(like, max_span=_MANY)):
            if (dtype, group, launch) not in seen:
                seen.add((dtype, group, launch))
                yield attention_variant(arch, _shape(head_dim=head_dim, group=group), dtype, launch)
    for shape in (_shape(head_dim=64, group=3), _shape(head_dim=256, window=1024, soft_cap=50.0)):
        launch = _bulk_launch(arch, shape)
        yield attention_variant(arch, shape, torch.bfloat16, launch)


def _quantised(arch: int) -> Iterator[Variant]:
    """Pools of codes: attention once per launch, and what writes them."""
    for codes in CODE_LIMIT if arch >= FLOAT8_ARCH else (torch.int8,):
        for head_dim in (256, 128):
            shape = _shape(head_dim=head_dim)
            like = LaunchKey(
                arch=arch, head_dim=head_dim, element_bytes=2, group=2, rows=2, longest_span=1, quantised=True
            )
            for launch in map(choose_launch, reachable(like, max_span=_MANY)):
                yield attention_variant(arch, shape, torch.bfloat16, launch, codes)
        for kernel, name in (
            (quantise_kv.store_quantised_kernel, "store_quantised"),
            (quantise_kv.round_kv_kernel, "round_kv"),
        ):
            yield Variant(
                name=f"{name} {_ELEMENT[codes]} D128",
                arch=arch,
                kernel=kernel,
                constants=quantise_kv.constants(codes, 128),
                num_warps=1,
                pointers={
                    **dict.fromkeys(["key_codes_ptr", "value_codes_ptr", "codes_ptr"], _ELEMENT[codes]),
                    **dict.fromkeys(["key_scales_ptr", "value_scales_ptr"], "fp32"),
                    **dict.fromkeys(["rows_ptr", "slots_ptr"], "i64"),
                },
            )


def _shape(
    *, head_dim: int, group: int = 2, window: int | None = None, soft_cap: float | None = None
) -> AttentionShape:
    return AttentionShape(
        num_heads=8 * group, num_kv_heads=8, head_dim=head_dim, scale=head_dim**-0.5, window=window, soft_cap=soft_cap
    )


def _bulk_launch(arch: int, shape: AttentionShape) -> Launch:
    """The launch of many rows and long spans in bfloat16."""
    return choose_launch(
        LaunchKey(
            arch=arch,
            head_dim=shape.head_dim,
            element_bytes=2,
            group=shape.num_heads // shape.num_kv_heads,
            rows=_MANY,
            longest_span=_MANY,
        )
    )


def attention_variant(
    arch: int, shape: AttentionShape, dtype: torch.dtype, launch: Launch, codes: torch.dtype | None = None
) -> Variant:
    """Attention as it is launched for ``shape``; ``codes``: what a quantised pool holds."""
    element = _ELEMENT[dtype]
    group = shape.num_heads // shape.num_kv_heads
    options = f" window {shape.window} cap {shape.soft_cap:g}" if shape.window and shape.soft_cap else ""
    options += f" pool {_ELEMENT[codes]}" if codes else ""
    scales = ["key_scales_ptr", "value_scales_ptr"]
    constants = tree_attention.constants(shape, launch, block_size=16, dtype=dtype, quantised=codes is not None)
    return Variant(
        name=f"tree_attention {element} D{shape.head_dim} G{group} {launch.tile_rows}x{launch.tile_keys} "
        f"{launch.num_warps}w {launch.num_stages}s{options}",
        arch=arch,
        kernel=tree_attention.tree_attention_kernel,
        constants=constants if codes else {**constants, **dict.fromkeys(scales)},
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        element=element,
        pointers={
            **dict.fromkeys(["units_ptr", "items_ptr", "rows_ptr", "block_ids_ptr"], "i32"),
            **dict.fromkeys(["partial_ptr", "partial_top_ptr", "partial_sum_ptr", *scales], "fp32"),
            **dict.fromkeys(["key_pool_ptr", "value_pool_ptr"], _ELEMENT[codes or dtype]),
        },
        bulk=launch.tile_rows >= 64 and dtype != torch.float32,
    )


def _others(arch: int) -> Iterator[Variant]:
    """The remaining kernels, at head size 128, model width 1024 and bfloat16."""
    float_pointers = dict.fromkeys(["partial_ptr", "partial_top_ptr", "partial_sum_ptr"], "fp32")
    yield Variant(
        name="merge_partials D128",
        arch=arch,
        kernel=merge_partials.merge_partials_kernel,
        constants={
            "GROUP": 2,
            "HEAD_DIM": 128,
            "HEAD_DIM_PADDED": 128,
            "TILE_ROWS": 64,
            "ROWS": merge_partials.ROWS,
        },
        num_warps=merge_partials.NUM_WARPS,
        pointers={**float_pointers, "merges_ptr": "i32"},
    )
    for width, heads, add in ((1024, 1, False), (128, 8, False), (1024, 1, True)):
        yield Variant(
            name=f"{'add_' if add else ''}rms_norm {width}",
            arch=arch,
            kernel=rms_norm.rms_norm_kernel,
            constants=rms_norm.constants(width, heads=heads, add=add) | ({} if add else {"stream_ptr": None}),
            num_warps=rms_norm.num_warps(width),
            pointers={"weight_ptr": "fp32", "stream_ptr": "fp32"},
        )
    for name, normed in (("rotate", False), ("norm_rotate", True)):
        constants = rotary.constants(128, normed=normed)
        yield Variant(
            name=f"{name} D128",
            arch=arch,
            kernel=rotary.rotate_kernel,
            constants=constants if normed else {**constants, "weight_ptr": None},
            num_warps=4,
            pointers=dict.fromkeys(["cos_ptr", "sin_ptr", "weight_ptr"], "fp32"),
        )
    for name, gelu in (("swiglu", False), ("geglu", True)):
        constants = {"GELU": gelu, "COLS": gated.COLS}
        yield Variant(name=name, arch=arch, kernel=gated.gated_kernel, constants=constants, num_warps=4)
    yield Variant(
        name="store_kv D128",
        arch=arch,
        kernel=store_kv.store_kv_kernel,
        constants={"HEAD_DIM": 128, "HEAD_DIM_PADDED": 128},
        num_warps=1,
        pointers={"rows_ptr": "i64", "slots_ptr": "i64"},
    )
    yield Variant(
        name="label_logits",
        arch=arch,
        kernel=label_readout.label_logits_kernel,
        constants={"DEPTH": label_readout.LABEL_DEPTH},
        num_warps=4,
        pointers={"hidden_ptr": "fp32", "logits_ptr": "fp32", "label_ids_ptr": "i64"},
    )
    for soft_cap in (0.0, 30.0):
        yield Variant(
            name=f"log_sum_exp cap {soft_cap:g}" if soft_cap else "log_sum_exp",
            arch=arch,
            kernel=label_readout.log_sum_exp_kernel,
            constants={"SOFT_CAP": soft_cap, **label_readout.LOG_SUM_EXP_TILE},
            num_warps=label_readout.LOG_SUM_EXP_WARPS,
            pointers={"hidden_ptr": "fp32", "partial_ptr": "fp32"},
        )
