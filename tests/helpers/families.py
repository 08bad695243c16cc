"""Random small models of ``transformers`` of every family that we read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
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
    SiglipVisionConfig,
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

_SIZES: Final = {
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
    torch.manual_seed(0)
    config = config_class(**{**_SIZES, **settings, **overrides})
    config._attn_implementation = "eager"  # the one that caps scores
    return _with_random_weights(model_class(config), plain_norm=0.0 if family.startswith("gemma") else 1.0)


def tiny_gemma3_with_images(**overrides: Any) -> PreTrainedModel:
    """A Gemma 3 as the larger ones are published: the decoder beside a part that sees images."""
    config_class, _, settings = FAMILIES["gemma3"]
    text = config_class(**{**_SIZES, **settings, **overrides})
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    torch.manual_seed(0)
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=text.vocab_size - 1,
        tie_word_embeddings=text.tie_word_embeddings,
    )
    return _with_random_weights(Gemma3ForConditionalGeneration(config), plain_norm=0.0)


def num_text_parameters(model: PreTrainedModel) -> int:
    """Elements of all weights but those that see images."""
    images = ("model.vision_tower.", "model.multi_modal_projector.")
    return sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith(images))


def _with_random_weights(model: Any, *, plain_norm: float) -> PreTrainedModel:
    found: PreTrainedModel = model.eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            scale = 0.1 if parameter.dim() == 1 else 1.0 if "embed" in name else parameter.shape[1] ** -0.5
            centre = plain_norm if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + centre)
    return found
