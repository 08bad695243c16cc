"""What the description of each family is read as: published files, defaults, and what is refused by name."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.families import config_from_gguf, config_from_hf
from engine.model_config import LayerAttention, ModelConfig
from engine.rotary import LinearScaling, Llama3Scaling, Rotary, YarnScaling
from tests.helpers.families import FAMILIES, num_text_parameters, tiny_gemma3_with_images, tiny_model

COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.3",
    "use_cache": True,
}
LLAMA_3_2: dict[str, Any] = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
MISTRAL_7B: dict[str, Any] = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN_2_5: dict[str, Any] = COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN_3: dict[str, Any] = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151669,
}
GEMMA_2: dict[str, Any] = COMMON | {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA_3: dict[str, Any] = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model", "patch_size": 14},
}
PHI_3: dict[str, Any] = COMMON | {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "vocab_size": 32064,
}


def read(mapping: dict[str, Any], **changes: Any) -> ModelConfig:
    return config_from_hf(mapping | changes, "config.json")


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


@pytest.mark.parametrize(
    ("mapping", "num_parameters", "kv_bytes"),
    [  # parameters as published, KV by hand: 2 × layers × KV heads × head size × 2 bytes
        (LLAMA_3_2, 1_235_814_400, 2 * 16 * 8 * 64 * 2),
        (MISTRAL_7B, 7_241_732_096, 2 * 32 * 8 * 128 * 2),
        (QWEN_2_5, 494_032_768, 2 * 24 * 2 * 64 * 2),
        (QWEN_3, 595_776_512, 2 * 28 * 8 * 128 * 2),
        (GEMMA_2, 2_614_341_888, 2 * 26 * 4 * 256 * 2),
        (GEMMA_3, 999_885_952, 2 * 26 * 1 * 256 * 2),
        (GEMMA_3_4B, 3_880_263_168, 2 * 34 * 4 * 256 * 2),
        (PHI_3, 3_821_079_552, 2 * 32 * 32 * 96 * 2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_published_configs_are_read_with_the_size_of_the_model(
    mapping: dict[str, Any], num_parameters: int, kv_bytes: int
) -> None:
    config = read(mapping)

    assert config.num_parameters == num_parameters
    assert config.kv_bytes_per_token(2) == kv_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_file_leaves_out_is_as_in_transformers(family: str) -> None:
    config_class, model_class, _ = FAMILIES[family]
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64)
    sizes |= {"num_hidden_layers": 13, "num_attention_heads": 32}
    judge: Any = config_class(**sizes, pad_token_id=0)

    config = config_from_hf({**sizes, "architectures": [model_class.__name__]}, "config.json")

    head_dim = getattr(judge, "head_dim", None) or 2
    assert (config.num_kv_heads, config.head_dim) == (judge.num_key_value_heads, head_dim)
    assert (config.max_positions, config.rms_norm_eps) == (judge.max_position_embeddings, judge.rms_norm_eps)
    assert config.tie_word_embeddings == judge.tie_word_embeddings
    assert config.attention_soft_cap == getattr(judge, "attn_logit_softcapping", None)
    assert config.logit_soft_cap == getattr(judge, "final_logit_softcapping", None)
    assert config.query_scale == pytest.approx(getattr(judge, "query_pre_attn_scalar", head_dim) ** -0.5)
    default_types = ["sliding_attention" if getattr(judge, "sliding_window", None) else "full_attention"] * 13
    types = getattr(judge, "layer_types", None) or default_types
    assert windows(config) == [judge.sliding_window if kind == "sliding_attention" else None for kind in types]
    nested = "full_attention" in judge.rope_parameters
    thetas = [(judge.rope_parameters[kind] if nested else judge.rope_parameters)["rope_theta"] for kind in types]
    assert [layer.rotary.theta for layer in config.layers] == thetas


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_of_a_model_is_read_and_counted(family: str) -> None:
    model = tiny_model(family)

    config = config_from_hf(model.config.to_dict() | {"architectures": [type(model).__name__]}, "config.json")

    assert config.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_llama_3_scales_its_rotary_embedding() -> None:
    scaling = Llama3Scaling(factor=32.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=8192)

    assert set(read(LLAMA_3_2).layers) == {LayerAttention(rotary=Rotary(theta=500_000.0, scaling=scaling))}


def test_the_window_of_mistral_is_in_every_layer_or_in_none() -> None:
    assert windows(read(MISTRAL_7B)) == [4096] * 32
    assert windows(read(MISTRAL_7B, sliding_window=None)) == [None] * 32


def test_the_window_of_qwen_counts_only_where_it_is_in_use() -> None:
    assert windows(read(QWEN_2_5)) == [None] * 24
    assert windows(read(QWEN_2_5, use_sliding_window=True)) == [None] * 21 + [32768] * 3
    types = ["sliding_attention", *["full_attention"] * 23]
    assert windows(read(QWEN_2_5, use_sliding_window=True, layer_types=types)) == [32768] + [None] * 23


def test_gemma_3_has_a_rotary_embedding_of_its_own_in_layers_with_a_window() -> None:
    full, local = Rotary(theta=1e6), Rotary(theta=1e4)
    by_kind = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    newer = {name: value for name, value in GEMMA_3.items() if not name.startswith("rope_")}
    scaled = read(GEMMA_3, rope_scaling={"rope_type": "linear", "factor": 8.0})

    for config in (read(GEMMA_3), read(newer, rope_parameters=by_kind)):
        assert config.layers[4:7] == (
            LayerAttention(rotary=local, window=512),
            LayerAttention(rotary=full),
            LayerAttention(rotary=local, window=512),
        )
    assert scaled.layers[5].rotary == Rotary(theta=1e6, scaling=LinearScaling(factor=8.0))
    assert scaled.layers[4].rotary == local


def test_the_text_part_of_a_gemma_3_with_images_is_read_as_a_text_model() -> None:
    config = read(GEMMA_3_4B)
    text = GEMMA_3_4B["text_config"] | {"num_attention_heads": 8, "vocab_size": 262_208}
    alone = config_from_hf(text | {"architectures": ["Gemma3ForCausalLM"]}, "config.json")

    assert config.layers[5].rotary == Rotary(theta=1e6, scaling=LinearScaling(factor=8.0))
    assert windows(config)[:6] == [1024] * 5 + [None]
    assert dataclasses.replace(config, architecture=alone.architecture, stored=alone.stored) == alone


@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_writes_of_a_gemma_3_with_images_is_read_and_its_text_part_counted(*, tied: bool) -> None:
    model = tiny_gemma3_with_images(tie_word_embeddings=tied)

    config = config_from_hf(model.config.to_dict() | {"architectures": [type(model).__name__]}, "config.json")

    assert config.num_parameters == num_text_parameters(model)


@pytest.mark.parametrize(
    ("mapping", "change", "said"),
    [
        (QWEN_2_5, {"layer_types": ["sliding_attention"] * 24}, "sliding_window is null"),
        (QWEN_2_5, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention']; a list of 24 entries"),
        (QWEN_2_5, {"layer_types": ["linear_attention"] * 24}, "layer_types is 'linear_attention'; only 'full_"),
        (QWEN_2_5, {"max_window_layers": -1}, "max_window_layers is -1; a whole number"),
        (QWEN_2_5, {"use_mrope": True}, "use_mrope is True; only False"),
        (QWEN_2_5, {"attention_bias": True}, "attention_bias is True; only False"),
        (QWEN_3, {"use_sliding_window": "no"}, "use_sliding_window is 'no'; true or false"),
        (MISTRAL_7B, {"sliding_window": 0}, "sliding_window is 0; a positive whole number"),
        (MISTRAL_7B, {"layer_types": ["full_attention"] * 32}, "layer_types is ["),
        (GEMMA_2, {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; only 'gelu_pytorch_tanh'"),
        (GEMMA_2, {"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0; a positive number"),
        (GEMMA_2, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; a positive number"),
        (GEMMA_3, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; only None or False"),
        (GEMMA_3, {"rope_parameters": {"global": {}}}, "rope_parameters: global is {}; this field is not supported"),
        (GEMMA_3, {"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config is None; an object"),
        (GEMMA_3_4B, {"text_config": []}, "text_config is []; an object"),
        (GEMMA_3_4B, {"text_config": {"hidden_size": 8}}, "text_config: intermediate_size is missing"),
        (GEMMA_3_4B, {"tie_word_embeddings": False}, "tie_word_embeddings is False; text_config says True"),
        (GEMMA_3_4B, {"audio_config": {}}, "audio_config is {}; this field is not supported"),
        (GEMMA_3, {"architectures": ["Gemma3nForConditionalGeneration"]}, "'Gemma3nForConditionalGeneration'"),
        (PHI_3, {"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "rope_scaling: type is 'longrope'"),
        (
            PHI_3,
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "no rotary scaling but longrope, got LinearScaling",
        ),
        (PHI_3, {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75; only 1.0"),
        (LLAMA_3_2, {"auto_map": {"a": "b"}}, "auto_map is {'a': 'b'}; this field is not supported"),
    ],
)
def test_what_would_change_the_forward_pass_is_refused_by_field_and_value(
    mapping: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said)):
        read(mapping, **change)


GGUF_SIZES: dict[str, Any] = {
    "context_length": 8192,
    "embedding_length": 4608,
    "feed_forward_length": 36864,
    "attention.head_count": 32,
    "attention.head_count_kv": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "vocab_size": 256000,
}


def read_gguf(name: str, num_layers: int, **fields: Any) -> ModelConfig:
    sizes = {f"{name}.{field}": value for field, value in GGUF_SIZES.items()}
    more = {f"{name}.{field}": value for field, value in fields.items()}
    return config_from_gguf(
        {"general.architecture": name, f"{name}.block_count": num_layers, **sizes, **more}, "m.gguf", has_head=False
    )


@pytest.mark.parametrize(
    ("name", "num_layers", "scale"),
    [("gemma2", 42, 128), ("gemma2", 46, 144), ("gemma3", 48, 128), ("gemma3", 62, 144)],
)
def test_the_largest_gemma_of_each_generation_scales_by_its_width(name: str, num_layers: int, scale: int) -> None:
    config = read_gguf(name, num_layers, **{"attention.sliding_window": 1024})

    assert config.query_scale == pytest.approx(scale**-0.5)


def test_layers_of_gemma_in_gguf_have_their_windows_by_generation_or_as_stated() -> None:
    window = {"attention.sliding_window": 1024}
    pattern = "attention.sliding_window_pattern"

    assert windows(read_gguf("gemma2", 4, **window)) == [1024, None, 1024, None]
    assert windows(read_gguf("gemma3", 7, **window)) == [1024] * 5 + [None, 1024]
    assert windows(read_gguf("gemma3", 4, **window, **{pattern: 3})) == [1024, 1024, None, 1024]
    assert windows(read_gguf("gemma3", 2, **window, **{pattern: [False, True]})) == [None, 1024]
    with pytest.raises(CheckpointError, match=r"sliding_window_pattern is \[True\]; a period or 2 flags"):
        read_gguf("gemma3", 2, **window, **{pattern: [True]})


def test_caps_of_gemma_2_in_gguf_have_the_values_of_the_file_or_of_the_paper() -> None:
    window = {"attention.sliding_window": 1024}
    plain = read_gguf("gemma2", 4, **window)
    stated = read_gguf("gemma2", 4, **window, attn_logit_softcapping=5.0, final_logit_softcapping=3.0)

    assert (plain.attention_soft_cap, plain.logit_soft_cap) == (50.0, 30.0)
    assert (stated.attention_soft_cap, stated.logit_soft_cap) == (5.0, 3.0)


def test_rotary_scaling_in_gguf_is_read() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 2048, "yarn_beta_fast": 16.0}
    config = read_gguf("qwen3", 1, **{f"rope.scaling.{name}": value for name, value in yarn.items()})

    assert config.layers[0].rotary.scaling == YarnScaling(
        factor=4.0, original_positions=2048, magnitude=0.1 * math.log(4) + 1, fast_turns=16.0
    )


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("qwen3", {"rope.scaling.type": "linear"}, "qwen3.rope.scaling.factor is missing"),
        ("qwen3", {"rope.scaling.type": "dynamic"}, "qwen3.rope.scaling.type is 'dynamic'; only 'none' or 'linear'"),
        ("qwen3", {"rope.scaling.factor": 2.0}, "qwen3.rope.scaling.factor is 2.0; only 1.0"),
        ("qwen3", {"attention.sliding_window": 8}, "qwen3.attention.sliding_window is 8; this field is not supported"),
        ("qwen2", {"llama.thing": 1}, "qwen2.llama.thing is 1; this field is not supported"),
        ("gemma3", {}, "gemma3.attention.sliding_window is missing"),
        ("phi3", {"attention.sliding_window": -1}, "phi3.attention.sliding_window is -1; a whole number"),
    ],
)
def test_gguf_fields_that_would_change_the_forward_pass_are_refused(
    name: str, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said)):
        read_gguf(name, 2, **fields)


@pytest.mark.parametrize("count", [3, 65])
def test_divisors_of_rotary_frequencies_must_be_one_for_each_pair(count: int) -> None:
    metadata = {f"llama.{field}": value for field, value in GGUF_SIZES.items()}
    metadata |= {"general.architecture": "llama", "llama.block_count": 1}

    with pytest.raises(CheckpointError, match=f"{count} divisors of rotary frequencies .* 64 divisors without scaling"):
        config_from_gguf(metadata, "m.gguf", has_head=True, rotary_divisors=(1.0,) * count)
