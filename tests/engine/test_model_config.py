from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from engine.errors import CheckpointError
from engine.families import config_from_gguf, config_from_hf
from engine.model_config import LayerAttention, ModelConfig, StoredForm
from engine.rotary import Rotary
from tests.helpers.llama_files import HEAD_SHAPES, head_shape, tiny_llama

# as published with SmolLM2-135M-Instruct
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}

SMOLLM2_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    layers=(LayerAttention(rotary=Rotary(theta=100_000.0)),) * 30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    max_positions=8192,
    rms_norm_eps=1e-05,
    query_scale=0.125,
    tie_word_embeddings=True,
)

LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0}

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "general.type": "model",
    "general.name": "a model",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": 160,
    "tokenizer.ggml.model": "gpt2",
    "quantize.imatrix.file": "somewhere.dat",
}


def without(mapping: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}


def test_reads_the_published_config_of_the_default_model() -> None:
    assert config_from_hf(SMOLLM2, "config.json") == SMOLLM2_CONFIG


@pytest.mark.parametrize("shape", HEAD_SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_agrees_with_the_config_object_that_wrote_the_file(shape: tuple[int, int, int, int], *, tied: bool) -> None:
    judge: Any = LlamaConfig(
        **head_shape(shape),
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=3,
        rope_parameters={"rope_type": "default", "rope_theta": 12345.0},
        rms_norm_eps=1e-4,
        tie_word_embeddings=tied,
    )

    config = config_from_hf(judge.to_dict(), "config.json")

    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (3, shape[0], shape[1])
    assert (config.head_dim, config.hidden_size) == (shape[2], shape[3])
    assert config.intermediate_size == judge.intermediate_size
    assert config.vocab_size == judge.vocab_size
    assert config.max_positions == judge.max_position_embeddings
    assert config.rms_norm_eps == judge.rms_norm_eps
    assert config.layers[0].rotary.theta == judge.rope_parameters["rope_theta"] == 12345.0
    assert config.tie_word_embeddings is tied


def test_optional_fields_that_are_missing_take_the_defaults_of_llama() -> None:
    optional = ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta")
    sizes = without(SMOLLM2, *optional, "rope_scaling", "tie_word_embeddings")
    judge: Any = LlamaConfig(**without(sizes, "architectures", "transformers_version"))

    config = config_from_hf(sizes, "config.json")

    assert config.num_kv_heads == judge.num_key_value_heads == 9
    assert config.head_dim == judge.head_dim == 64
    assert config.max_positions == judge.max_position_embeddings
    assert config.rms_norm_eps == judge.rms_norm_eps
    assert config.layers[0].rotary.theta == judge.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings == judge.tie_word_embeddings


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, 2.5, "64", True, [64]])
def test_a_size_that_is_no_positive_whole_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"^dir/config.json: {name} is "):
        config_from_hf(SMOLLM2 | {name: value}, "dir/config.json")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mlp_bias", True, "mlp_bias is True; only False"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'; only 'silu'"),
        ("attention_dropout", 0.1, "attention_dropout is 0.1; only 0.0"),
        ("pretraining_tp", 2, "pretraining_tp is 2; only 1"),
        ("model_type", "mistral", "model_type is 'mistral'; only 'llama'"),
        ("sliding_window", 4096, "sliding_window is 4096; only None"),
        ("quantization_config", {"bits": 4}, "quantization_config is {'bits': 4}; only None"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5; only 1.0"),
        ("rope_interleaved", True, "rope_interleaved is True; only False"),
        (
            "rope_scaling",
            {"rope_type": "dynamic", "factor": 8.0},
            "rope_scaling: rope_type is 'dynamic'; only 'default'",
        ),
        ("rope_scaling", {"type": "longrope", "factor": 2.0}, "rope_scaling: type is 'longrope'; only 'default'"),
        ("rope_scaling", {"type": "linear"}, "rope_scaling: factor is missing"),
        ("rope_scaling", {"type": "linear", "factor": 0}, "rope_scaling: factor is 0; a positive number"),
        ("rope_scaling", {"type": "linear", "rope_type": "yarn"}, "rope_scaling: the kind of scaling is stated twice"),
        ("rope_scaling", {"type": "linear", "factor": 2.0, "beta_fast": 4}, "rope_scaling: beta_fast is 4; this field"),
        ("rope_scaling", LLAMA3 | {"high_freq_factor": 1.0}, "rope_scaling: high_freq_factor is 1.0; it must exceed"),
        ("rope_scaling", YARN | {"beta_fast": 1}, "rope_scaling: beta_fast is 1.0; it must exceed beta_slow"),
        ("rope_scaling", {"factor": 2.0}, "rope_scaling: factor is 2.0; this field is not supported"),
        ("rope_scaling", 2.0, "rope_scaling is 2.0; an object or null"),
        ("rope_parameters", {"rope_type": "proportional"}, "rope_parameters: rope_type is 'proportional'; only"),
        ("rope_parameters", {"partial_rotary_factor": 0.5}, "rope_parameters: partial_rotary_factor is 0.5; only 1.0"),
        ("final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0; this field is not supported"),
        ("logit_scale", 0.5, "logit_scale is 0.5; this field is not supported"),
        ("auto_map", {"a": "b"}, "auto_map is {'a': 'b'}; this field is not supported"),
        ("something_new", None, "something_new is None; this field is not supported"),
    ],
)
def test_what_would_change_the_forward_pass_is_refused_by_file_field_and_value(
    name: str, value: object, said: str
) -> None:
    with pytest.raises(CheckpointError, match="^" + re.escape(f"dir/config.json: {said}")):
        config_from_hf(SMOLLM2 | {name: value}, "dir/config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_scaling", {"rope_type": "default"}), ("rope_parameters", {"rope_type": "default", "rope_theta": 1e5})],
)
def test_a_plain_rotary_embedding_may_be_spelled_out(field: str, value: object) -> None:
    assert config_from_hf(SMOLLM2 | {field: value}, "config.json") == SMOLLM2_CONFIG


def test_a_rotary_base_that_is_stated_twice_must_be_the_same() -> None:
    twice = SMOLLM2 | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}

    with pytest.raises(CheckpointError, match=r"twice.*100000.*500000"):
        config_from_hf(twice, "config.json")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["MixtralForCausalLM"], "'MixtralForCausalLM'"),
        ("Llama", "'Llama'"),
        (["LlamaForCausalLM", "Other"], "['LlamaForCausalLM', 'Other']"),
        (None, "not stated"),
    ],
)
def test_an_unknown_architecture_is_refused_with_the_supported_ones(value: object, said: str) -> None:
    wanted = f"config.json: the architecture is {said}; supported: LlamaForCausalLM, MistralForCausalLM, Qwen2"

    with pytest.raises(CheckpointError, match=re.escape(wanted)):
        config_from_hf(SMOLLM2 | {"architectures": value}, "config.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_attention_heads": 10}, "head_dim is missing"),
        ({"num_key_value_heads": 2}, "9 query heads cannot be shared evenly by 2"),
        ({"head_dim": 33}, "head size is 33"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
    ],
)
def test_values_that_make_no_decoder_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        config_from_hf(SMOLLM2 | change, "config.json")


@pytest.mark.parametrize("has_head", [True, False])
def test_reads_gguf_metadata_and_ties_the_head_if_the_file_has_none(*, has_head: bool) -> None:
    assert config_from_gguf(GGUF, "model.gguf", has_head=has_head) == ModelConfig(
        architecture="llama",
        layers=(LayerAttention(rotary=Rotary(theta=10_000.0)),) * 2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=160,
        max_positions=256,
        rms_norm_eps=1e-5,
        query_scale=0.25,
        tie_word_embeddings=not has_head,
        stored=StoredForm(interleaved_rotary=True),
    )


def test_gguf_vocabulary_size_falls_back_to_the_number_of_tokens() -> None:
    metadata = without(GGUF, "llama.vocab_size") | {"tokenizer.ggml.tokens": ["a", "b", "c"]}

    assert config_from_gguf(metadata, "model.gguf", has_head=True).vocab_size == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("general.architecture", "mamba"),
        ("general.type", "adapter"),
        ("llama.expert_count", 8),
        ("llama.rope.scaling.type", "longrope"),
        ("llama.rope.scaling.factor", 8.0),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.value_length", 32),
        ("llama.attention.head_count", [4, 4]),
        ("llama.attention.sliding_window", 4096),
        ("llama.logit_scale", 0.5),
        ("llama.something_new", 1),
        ("split.count", 3),
    ],
)
def test_gguf_metadata_that_would_change_the_forward_pass_is_refused(name: str, value: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_from_gguf(GGUF | {name: value}, "dir/model.gguf", has_head=True)

    assert "dir/model.gguf" in str(caught.value)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("name", [name for name in GGUF if name.startswith("llama.")])
def test_gguf_metadata_is_read_under_its_own_name(name: str) -> None:
    optional = {"llama.attention.head_count_kv", "llama.rope.freq_base", "llama.rope.dimension_count"}
    incomplete = without(GGUF, name)

    if name in optional:
        config_from_gguf(incomplete, "model.gguf", has_head=True)
    else:
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            config_from_gguf(incomplete, "model.gguf", has_head=True)


@pytest.mark.parametrize("tied", [True, False])
def test_counts_parameters_as_the_model_itself_does(*, tied: bool) -> None:
    model: LlamaForCausalLM = tiny_llama(head_dim=24, tie_word_embeddings=tied)

    config = config_from_hf(model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}, "config.json")

    assert config.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_kv_bytes_of_the_default_model() -> None:
    assert SMOLLM2_CONFIG.kv_bytes_per_token(2) == 23_040


@pytest.mark.parametrize(
    "module", ["engine.model_config", "engine.checkpoint_files", "scorer.plan", "scorer.tokens.tokenizer_files"]
)
def test_describing_a_checkpoint_needs_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
