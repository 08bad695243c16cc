"""Random operations of a C library that was built to watch its own accesses to memory.

    python -m tests.kernels.sanitized LIBRARY

The process ends with a report of the sanitiser at the first access that is not right, and fails where the check
at start finds that the library does not agree with PyTorch.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from kernels.api import LastLayerOps, LayerOps, LayersInput
from kernels.cpu import CpuKernels
from kernels.native import NativeFeedForward8, NativeLinear, NativeOps, load_native_ops
from tests.kernels.cases import coded_weight, make_case, make_table, prefix_with_rows, random_trie

# around the 16 and 32 rows of tiles, and more than threads share the outputs for
ROWS = (1, 17, 33, 300)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape)


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def check_tables(native: NativeOps, seed: int) -> None:
    """A good table, and one with a number changed to anything."""
    rng = np.random.default_rng(seed)
    nodes = random_trie(rng, num_nodes=int(rng.integers(9)), max_tokens=20)
    table, _, _ = make_table(nodes, block_size=16, rng=rng)
    native.check_spans(table)
    for name in ("query_lo", "query_hi", "key_lo", "key_tokens", "key_position", "block_ids") if len(nodes) else ():
        column = getattr(table, name).copy()
        if len(column):
            column[rng.integers(len(column))] = rng.choice([-(2**31), -1, 0, 1, 17, 2**31 - 1])
        native.check_spans(dataclasses.replace(table, **{name: column}))


def attend(native: NativeOps, seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = random_trie(rng, num_nodes=int(rng.integers(1, 9)), max_tokens=int(rng.choice([20, 90, 700])))
    case = make_case(
        nodes,
        num_heads=9,
        num_kv_heads=3,
        head_dim=int(rng.choice([16, 64, 80])),
        dtype=torch.bfloat16,
        window=int(rng.choice([0, 50])) or None,
        soft_cap=float(rng.choice([0.0, 2.0])) or None,
        seed=seed,
    )
    assert native.attention is not None
    work = native.attention.cut(case.table, group=3, kv_heads=3, num_threads=int(rng.choice([1, 2, 16])))
    assert isinstance(case.key_pool, Tensor)
    assert isinstance(case.value_pool, Tensor)
    native.attention(case.query, case.key, case.value, case.key_pool, case.value_pool, work, case.shape)


def run_layers(linear: NativeLinear, rows: int) -> None:
    for width, inner, outputs in ((33, 17, 5), (801, 45, 97)):
        linear.layer(half(outputs, width), random(outputs))(half(rows, width))
        linear.normed_layer(random(width), 1e-5, half(outputs, width))(random(rows, width), half(rows, width))
        whole = linear.feed_forward(random(width), 1e-5, half(2 * inner, width), half(width, inner), "gelu_tanh")
        whole(random(rows, width), half(rows, width))
        linear.log_sum_exp(random(rows, width), half(1000 + outputs, width), None)
        linear.vocabulary_logits(random(rows, width), half(outputs, width), 5.0)


def run_coded_layers(linear: NativeLinear, rows: int) -> None:
    for bits in (4, 8):
        linear.layer(coded_weight(7, 864, bits=bits))(half(rows, 864))
        gate_up, down = coded_weight(2 * 32, 96, bits=bits), coded_weight(96, 32, bits=bits)
        linear.feed_forward(random(96), 1e-5, gate_up, down, "silu")(random(rows, 96), half(rows, 96))


def run_layers_in_8_bits(feed_forward: NativeFeedForward8, rows: int) -> None:
    for width, inner in ((33, 17), (1601, 45), (65, 800)):
        part = feed_forward(random(width), 1e-5, half(2 * inner, width), half(width, inner), "gelu_tanh")
        part(random(rows, width), half(rows, width))


def run_joined_layers(native: NativeOps, rows: int) -> None:
    kernels = CpuKernels(native)
    case = make_case(prefix_with_rows(77, [rows]), num_heads=6, num_kv_heads=2, head_dim=32, dtype=torch.bfloat16)
    assert isinstance(case.key_pool, Tensor)
    layer = LayerOps(
        qkv=kernels.pack_normed_linear(random(96), 1e-5, half(320, 96)),
        attention_out=kernels.pack_linear(half(96, 192)),
        feed_forward=kernels.pack_feed_forward(random(96), 1e-5, half(64, 96), half(96, 32), "silu"),
        shape=case.shape,
        turn=0,
    )
    last = LastLayerOps(
        query=kernels.pack_normed_linear(random(96), 1e-5, half(192, 96)),
        key_value=kernels.pack_normed_linear(random(96), 1e-5, half(128, 96)),
        attention_out=layer.attention_out,
        feed_forward=layer.feed_forward,
        norm=random(96),
        eps=1e-5,
        shape=case.shape,
        turn=0,
    )
    joined = kernels.join_layers([layer, layer], last)
    assert joined is not None
    plan = kernels.plan(case.table)
    pools = torch.zeros(3, *case.key_pool.shape).bfloat16()
    joined(
        LayersInput(
            stream=random(rows, 96),
            update=half(rows, 96),
            turns=[(random(rows, 16), random(rows, 16))],
            key_pools=pools,
            value_pools=pools.clone(),
            keep_rows=torch.arange(rows),
            keep_slots=torch.arange(rows) % pools.shape[2],
            read_rows=torch.arange(rows),
            plan=plan,
            read_plan=plan,
        )
    )


def run_elementwise(native: NativeOps, rows: int, width: int) -> None:
    """What stands beside ``rotate``, which only the check at start runs."""
    native.rms_norm(half(rows, width), random(width), 1e-5)
    native.rms_norm(half(rows, 3, width), random(width), 1e-5)
    native.rms_norm32(random(rows, width), random(width), 1e-5)
    native.add_rms_norm(random(rows, width), half(rows, width), random(width), 1e-5)
    native.swiglu(half(rows, 2 * width))
    native.geglu(half(rows, 2 * width))
    _, scales = native.quantise_rows(half(rows, width))
    native.scale_rows(half(rows, width), scales)
    native.merge(random(2, rows, width), random(2, rows), half(2, rows, width), random(2, rows))
    native.label_logits(random(rows, width), half(50, width), torch.randint(50, (rows, 2)))


def main(library: Path) -> None:
    torch.manual_seed(0)
    with patch("kernels.native.ops.find_library", return_value=library):
        native = load_native_ops()
    assert native is not None
    for rows in ROWS:
        for width in (1, 15, 77, 130):
            run_elementwise(native, rows, width)
        if native.linear is not None:
            run_layers(native.linear, rows)
            run_coded_layers(native.linear, rows)
            run_joined_layers(native, rows)
        if native.feed_forward8 is not None:
            run_layers_in_8_bits(native.feed_forward8, rows)
    for seed in range(40):
        check_tables(native, seed)
    if native.attention is not None:
        for seed in range(8):
            attend(native, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.write("done\n")
