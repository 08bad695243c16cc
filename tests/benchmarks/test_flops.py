from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.flops import ModelCost, read_model_cost
from tests.helpers.tiny import tiny_checkpoint, tiny_config


def test_linear_cost_is_two_for_each_weight_of_the_layers() -> None:
    checkpoint = tiny_checkpoint(tiny_config())
    layers = checkpoint.weights.layers
    held = sum(matrix.numel() for w in layers for matrix in (w.qkv, w.attention_out, w.gate_up, w.down))
    cost = ModelCost(config=checkpoint.config)

    assert cost.linear_weights == held
    assert cost.linear_flop(10) == 20 * held


def test_attention_cost_is_two_products_over_all_heads_and_layers() -> None:
    cost = ModelCost(config=tiny_config(num_layers=2, num_heads=3, head_dim=16))

    # one query and one key: 16 multiply-adds for the score and 16 for the value, 3 heads, 2 layers
    assert cost.attention_flop(1) == 2 * (16 + 16) * 3 * 2


@pytest.mark.model
def test_constants_of_the_default_model(default_model_path: Path) -> None:
    cost = read_model_cost(default_model_path)

    assert cost.linear_weights == pytest.approx(106.2e6, rel=1e-3)
    assert cost.kv_bytes_per_token == 23_040
    # a document of 1,000 tokens: 212 GFLOP of linear layers and 35 GFLOP of causal attention
    assert cost.linear_flop(1000) / 1e9 == pytest.approx(212.4, rel=1e-3)
    assert cost.attention_flop(1000 * 1001 // 2) / 1e9 == pytest.approx(34.6, rel=1e-2)
