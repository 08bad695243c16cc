"""Qwen 2 and 2.5 (bias on query, key and value) and Qwen 3 (query and key normed)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.config_fields import Fields
from engine.families.gguf import GgufFamily
from engine.families.hf import HfDefaults, HfFamily, layer_types, plain_decoder, with_windows
from engine.families.hf_rotary import hf_rotary
from engine.model_config import LayerAttention, ModelConfig

_POSITIONS: Final = 32_768


def _qwen2(fields: Fields) -> ModelConfig:
    plain = plain_decoder(fields, HfDefaults(max_positions=_POSITIONS, num_kv_heads=32), hf_rotary)
    return replace(plain, layers=_layers(fields, plain), qkv_bias=True)


def _qwen3(fields: Fields) -> ModelConfig:
    plain = plain_decoder(fields, HfDefaults(max_positions=_POSITIONS, num_kv_heads=32, head_dim=128), hf_rotary)
    bias = fields.flag("attention_bias", default=False)
    return replace(plain, layers=_layers(fields, plain), qkv_bias=bias, attention_out_bias=bias, query_key_norm=True)


def _layers(fields: Fields, plain: ModelConfig) -> tuple[LayerAttention, ...]:
    """Where the window is in use, it is so from one layer on; files that do not use it state it all the same."""
    stated = fields.optional_size("sliding_window", absent=4096)
    window = stated if fields.flag("use_sliding_window", default=False) else None
    first = fields.take("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise fields.wrong("max_window_layers", first, "a whole number is needed")
    sliding = layer_types(fields, plain.num_layers, lambda number: window is not None and number >= first)
    return with_windows(fields, sliding, window, full=plain.layers[0].rotary)


def _biased(_: Fields, plain: ModelConfig) -> ModelConfig:
    return replace(plain, qkv_bias=True)


def _normed(_: Fields, plain: ModelConfig) -> ModelConfig:
    return replace(plain, query_key_norm=True)


HF: Final = {
    "Qwen2ForCausalLM": HfFamily(
        read=_qwen2, inert={"hidden_act": ("silu",), "model_type": ("qwen2",), "use_mrope": (False,)}
    ),
    "Qwen3ForCausalLM": HfFamily(read=_qwen3, inert={"hidden_act": ("silu",), "model_type": ("qwen3",)}),
}

GGUF: Final = {
    "qwen2": GgufFamily(complete=_biased),
    "qwen3": GgufFamily(complete=_normed),
}
