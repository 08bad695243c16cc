"""Llama 2 and 3, SmolLM2, and Mistral, which adds a sliding window."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.config_fields import Fields
from engine.families.gguf import GgufFamily
from engine.families.hf import HfDefaults, HfFamily, plain_decoder, with_windows
from engine.families.hf_rotary import hf_rotary
from engine.model_config import ModelConfig, StoredForm


def _llama(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", default=False)
    plain = plain_decoder(fields, HfDefaults(max_positions=2048), hf_rotary)
    return replace(plain, qkv_bias=bias, attention_out_bias=bias)


def _mistral(fields: Fields) -> ModelConfig:
    plain = plain_decoder(fields, HfDefaults(max_positions=131_072, num_kv_heads=8), hf_rotary)
    window = fields.optional_size("sliding_window", absent=4096)
    sliding = [window is not None] * plain.num_layers
    return replace(plain, layers=with_windows(fields, sliding, window, full=plain.layers[0].rotary))


def _interleaved(_: Fields, plain: ModelConfig) -> ModelConfig:
    return replace(plain, stored=StoredForm(interleaved_rotary=True))


HF: Final = {
    "LlamaForCausalLM": HfFamily(
        read=_llama,
        neutral=frozenset({"is_llama_config"}),
        inert={
            "hidden_act": ("silu",),
            "model_type": ("llama",),
            "pretraining_tp": (1,),
            "rope_interleaved": (False,),
        },
    ),
    "MistralForCausalLM": HfFamily(read=_mistral, inert={"hidden_act": ("silu",), "model_type": ("mistral",)}),
}

# Mistral's files are written under Llama's name, without the window, which llama.cpp does not apply.
GGUF: Final = {
    "llama": GgufFamily(
        complete=_interleaved,
        inert={
            "attention.sliding_window": (0,),
            "expert_count": (0,),
            "expert_used_count": (0,),
            "rope.scale_linear": (1.0,),
            "tensor_data_layout": ("Meta AI original pth",),
        },
    )
}
