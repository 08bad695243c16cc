"""Random small models of ``transformers`` of every family that we read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

# the window is shorter than most prompts of the tests
WINDOW: Final = 7
_GEMMA: Final = {
    "query_pre_attn_scalar": 24,
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}

FAMILIES: Final[Mapping[str, tuple[Any, Any, Mapping[str, Any]]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": WINDOW}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 1}),
    "qwen2 windows": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 24, "tie_word_embeddings": True}),
    "gemma": (GemmaConfig, GemmaForCausalLM, {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 24}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, _GEMMA | {"attn_logit_softcapping": 2.0}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, _GEMMA | {"head_dim": 24, "sliding_window_pattern": 3}),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"sliding_window": WINDOW, "pad_token_id": 0}),
}
"""Name, config and model of ``transformers``, and what differs from the common sizes."""


def tiny_model(family: str, **overrides: Any) -> PreTrainedModel:
    """A model in which no two rows of weights are equal, and activations neither grow nor vanish."""
    config_class, model_class, settings = FAMILIES[family]
    common = {
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 160,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    config = config_class(**{**common, **settings, **overrides})
    config._attn_implementation = "eager"  # the one that caps scores
    model: PreTrainedModel = model_class(config).eval()
    plain_norm = 0.0 if family.startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.1 if parameter.dim() == 1 else 1.0 if "embed" in name else parameter.shape[1] ** -0.5
            centre = plain_norm if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + centre)
    return model
