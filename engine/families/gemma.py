"""Gemma 1, 2 and 3: GELU and scaled embeddings; from 2 on four norms a layer and windows. Images are not read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from engine.config_fields import Fields
from engine.families.gguf import GgufFamily
from engine.families.hf import INERT, NEUTRAL, HfDefaults, HfFamily, layer_types, plain_decoder, with_windows
from engine.families.hf_rotary import hf_rotary, hf_rotary_record
from engine.model_config import LayerAttention, ModelConfig, StoredForm
from engine.rotary import Rotary

_GELU: Final = "gelu_pytorch_tanh"
_LOCAL_THETA: Final = 10_000.0
_GEMMA3_THETA: Final = 1_000_000.0
# every second layer of Gemma 2 and every sixth of Gemma 3 sees everything
_GEMMA2_PERIOD: Final = 2
_GEMMA3_PERIOD: Final = 6
# The largest of each generation scales by its model width, not by its head size. GGUF does not state it,
# but the number of layers tells which model it is.
_WIDE_SCALE_LAYERS: Final[Mapping[str, int]] = {"gemma2": 46, "gemma3": 62}

_INERT: Final[Mapping[str, tuple[object, ...]]] = {
    "hidden_act": (_GELU,),
    "hidden_activation": (_GELU, None),
    "use_bidirectional_attention": (None, False),
}
_GEMMA3_TEXT: Final = {**_INERT, "model_type": ("gemma3_text",)}
# What Google's files leave out of the description of the text part, and transformers fills in.
_GEMMA3_TEXT_SIZES: Final = {"num_attention_heads": 8, "vocab_size": 262_208}
_IMAGES: Final = frozenset({
    "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image", "vision_config",
})  # fmt: skip


def _gemma1(fields: Fields) -> ModelConfig:
    defaults = HfDefaults(max_positions=8192, num_kv_heads=16, head_dim=256, tie_word_embeddings=True)
    plain = plain_decoder(fields, defaults, hf_rotary)
    bias = fields.flag("attention_bias", default=False)
    return replace(_common(plain), qkv_bias=bias, attention_out_bias=bias, stored=StoredForm(norm_offset=1.0))


def _gemma2(fields: Fields) -> ModelConfig:
    defaults = HfDefaults(max_positions=8192, num_kv_heads=4, head_dim=256, tie_word_embeddings=True)
    plain = plain_decoder(fields, defaults, hf_rotary)
    sliding = layer_types(fields, plain.num_layers, lambda number: (number + 1) % _GEMMA2_PERIOD != 0)
    layers = with_windows(
        fields, sliding, fields.optional_size("sliding_window", absent=4096), full=plain.layers[0].rotary
    )
    return _gemma(fields, plain, layers, attention_cap=50.0, logit_cap=30.0)


def _gemma3(fields: Fields) -> ModelConfig:
    local_theta = fields.positive("rope_local_base_freq", _LOCAL_THETA)
    by_kind = fields.inner("rope_parameters")

    def full_rotary(fields: Fields, max_positions: int) -> Rotary:
        record = by_kind and by_kind.inner("full_attention")
        if record is not None:
            return hf_rotary_record(record, max_positions=max_positions, default_theta=_GEMMA3_THETA)
        return hf_rotary(fields, max_positions, default_theta=_GEMMA3_THETA)

    defaults = HfDefaults(max_positions=131_072, num_kv_heads=4, head_dim=256, tie_word_embeddings=True)
    plain = plain_decoder(fields, defaults, full_rotary)
    local = Rotary(theta=local_theta)
    if by_kind is not None:
        if (record := by_kind.inner("sliding_attention")) is not None:
            local = hf_rotary_record(record, max_positions=plain.max_positions, default_theta=local_theta)
        by_kind.refuse_rest()
    period = fields.size("sliding_window_pattern", _GEMMA3_PERIOD)
    sliding = layer_types(fields, plain.num_layers, lambda number: (number + 1) % period != 0)
    layers = with_windows(
        fields, sliding, fields.optional_size("sliding_window", absent=4096), full=plain.layers[0].rotary, local=local
    )
    return replace(_gemma(fields, plain, layers, attention_cap=None, logit_cap=None), query_key_norm=True)


def _gemma3_with_images(fields: Fields) -> ModelConfig:
    """The text part of a model that also takes images; its text runs through it as through a text model."""
    text = fields.take("text_config")
    if not isinstance(text, Mapping):
        raise fields.wrong("text_config", text, "an object that describes the text part is needed")
    inner = Fields(
        {**_GEMMA3_TEXT_SIZES, **text, "architectures": fields.take("architectures")}, f"{fields.source}: text_config"
    )
    config = _gemma3(inner)
    inner.refuse_rest(neutral=NEUTRAL, inert={**INERT, **_GEMMA3_TEXT})
    if (tied := fields.flag("tie_word_embeddings", default=config.tie_word_embeddings)) != config.tie_word_embeddings:
        raise fields.wrong("tie_word_embeddings", tied, f"text_config says {config.tie_word_embeddings}")
    return replace(config, stored=replace(config.stored, among_other_parts=True))


def _gemma(
    fields: Fields,
    plain: ModelConfig,
    layers: tuple[LayerAttention, ...],
    *,
    attention_cap: float | None,
    logit_cap: float | None,
) -> ModelConfig:
    """What the later generations share; the caps are those of files that do not state them."""
    bias = fields.flag("attention_bias", default=False)
    return replace(
        _common(plain),
        output_norms=True,
        layers=layers,
        query_scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        qkv_bias=bias,
        attention_out_bias=bias,
        attention_soft_cap=fields.optional_positive("attn_logit_softcapping", absent=attention_cap),
        logit_soft_cap=fields.optional_positive("final_logit_softcapping", absent=logit_cap),
        stored=StoredForm(norm_offset=1.0),
    )


def _common(plain: ModelConfig) -> ModelConfig:
    return replace(plain, activation="gelu_tanh", embedding_scale=plain.hidden_size**0.5)


def _gguf_gemma1(_: Fields, plain: ModelConfig) -> ModelConfig:
    return _common(plain)


def _gguf_gemma2(fields: Fields, plain: ModelConfig) -> ModelConfig:
    layers = _gguf_layers(fields, plain, "gemma2", _GEMMA2_PERIOD, local=plain.layers[0].rotary)
    return replace(
        _common(plain),
        output_norms=True,
        layers=layers,
        query_scale=_gguf_query_scale(plain, "gemma2"),
        attention_soft_cap=fields.positive("gemma2.attn_logit_softcapping", 50.0),
        logit_soft_cap=fields.positive("gemma2.final_logit_softcapping", 30.0),
    )


def _gguf_gemma3(fields: Fields, plain: ModelConfig) -> ModelConfig:
    local = Rotary(theta=fields.positive("gemma3.rope.freq_base_swa", _LOCAL_THETA))
    return replace(
        _common(plain),
        output_norms=True,
        layers=_gguf_layers(fields, plain, "gemma3", _GEMMA3_PERIOD, local=local),
        query_scale=_gguf_query_scale(plain, "gemma3"),
        query_key_norm=True,
        logit_soft_cap=fields.optional_positive("gemma3.final_logit_softcapping"),
    )


def _gguf_layers(
    fields: Fields, plain: ModelConfig, name: str, period: int, *, local: Rotary
) -> tuple[LayerAttention, ...]:
    """The window's layers; a pattern that is stated is a period, or a flag for every layer."""
    window = fields.size(f"{name}.attention.sliding_window")
    pattern = fields.take(f"{name}.attention.sliding_window_pattern", period)
    if isinstance(pattern, list) and len(pattern) == plain.num_layers:
        sliding = [bool(each) for each in pattern]
    elif isinstance(pattern, int) and pattern > 0:
        sliding = [(number + 1) % pattern != 0 for number in range(plain.num_layers)]
    else:
        need = f"a period or {plain.num_layers} flags are needed"
        raise fields.wrong(f"{name}.attention.sliding_window_pattern", pattern, need)
    return with_windows(fields, sliding, window, full=plain.layers[0].rotary, local=local)


def _gguf_query_scale(plain: ModelConfig, name: str) -> float:
    wide = plain.num_layers == _WIDE_SCALE_LAYERS[name]
    return 1 / math.sqrt(plain.hidden_size / plain.num_heads if wide else plain.head_dim)


HF: Final = {
    "GemmaForCausalLM": HfFamily(read=_gemma1, inert={**_INERT, "model_type": ("gemma",)}),
    "Gemma2ForCausalLM": HfFamily(read=_gemma2, inert={**_INERT, "model_type": ("gemma2",)}),
    "Gemma3ForCausalLM": HfFamily(read=_gemma3, inert=_GEMMA3_TEXT),
    "Gemma3ForConditionalGeneration": HfFamily(
        read=_gemma3_with_images, neutral=_IMAGES, inert={"model_type": ("gemma3",)}
    ),
}

GGUF: Final = {
    "gemma": GgufFamily(complete=_gguf_gemma1),
    "gemma2": GgufFamily(complete=_gguf_gemma2, default_theta=10_000.0),
    "gemma3": GgufFamily(complete=_gguf_gemma3, default_theta=_GEMMA3_THETA),
}
