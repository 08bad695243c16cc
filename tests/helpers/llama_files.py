"""Random small Llama models of ``transformers``, and models of any family written to disk in the formats we read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.weights import ModelWeights
from kernels.weights import Weight, dense

# (query heads, KV heads, head size, hidden size); head size is not always hidden / heads
HEAD_SHAPES = [(2, 2, 32, 64), (9, 3, 64, 144), (4, 1, 80, 128), (7, 1, 128, 112), (6, 2, 32, 192)]


def tiny_llama(**overrides: Any) -> LlamaForCausalLM:
    """Two layers with weights, norms included, that no two rows share."""
    settings: dict[str, Any] = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 160,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**settings | overrides))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


def head_shape(shape: tuple[int, int, int, int]) -> dict[str, Any]:
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
    return dict(zip(names, shape, strict=True))


def save_folder(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


# what converters for llama.cpp call the families of transformers
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    encoding: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    without: frozenset[str] = frozenset(),
    extra: dict[str, tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]] | None = None,
    fields: dict[str, float | str] | None = None,
) -> Path:
    """Write the model as converters for llama.cpp do; matrices in ``encoding``, norms and biases in float32.

    ``extra`` tensors are encoded already and go in place of others of the same name.
    """
    config: Any = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotary = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[_ARCHITECTURES[config.model_type]])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rotary["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_window_and_caps(writer, config)
    for name, value in (fields or {}).items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_float32(name, value)
    encoded = {}
    for name, tensor in _gguf_tensors(model).items():
        kind = encoding if tensor.dim() == 2 else gguf.GGMLQuantizationType.F32
        encoded[name] = (gguf.quantize(tensor.numpy(), kind), kind)
    for name, (values, kind) in (encoded | (extra or {})).items():
        if name not in without:
            writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_window_and_caps(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.model_type in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _gguf_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    config: Any = model.config
    architecture = _ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tensors = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if architecture == gguf.MODEL_ARCH.LLAMA and name.endswith("q_proj.weight"):
            values = _interleaved(values, config.num_attention_heads)
        elif architecture == gguf.MODEL_ARCH.LLAMA and name.endswith("k_proj.weight"):
            values = _interleaved(values, config.num_key_value_heads)
        elif config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        tensors[str(names.get_name(name, try_suffixes=(".weight", ".bias")))] = values
    return tensors


def _interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of each head reordered so that pairs that rotate together are neighbours."""
    halves = weight.view(num_heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def assert_same_weights(weights: ModelWeights, model: LlamaForCausalLM, dtype: torch.dtype = torch.float32) -> None:
    """Every tensor equals the judge's, converted to ``dtype`` (norms: to float32), bit for bit."""
    expected = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}

    def same(weight: Weight, *names: str) -> None:
        ours = dense(weight)
        theirs = torch.cat([expected[name] for name in names])
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs), names

    def same_norm(ours: Tensor, name: str) -> None:
        assert ours.dtype == torch.float32
        assert torch.equal(ours, model.state_dict()[name].float()), name

    same(weights.embedding, "model.embed_tokens.weight")
    same_norm(weights.final_norm, "model.norm.weight")
    same(weights.head, "lm_head.weight")
    assert len(weights.layers) == model.config.num_hidden_layers
    for number, layer in enumerate(weights.layers):
        at = f"model.layers.{number}"
        same_norm(layer.input_norm, f"{at}.input_layernorm.weight")
        same(layer.qkv, *(f"{at}.self_attn.{part}_proj.weight" for part in "qkv"))
        same(layer.attention_out, f"{at}.self_attn.o_proj.weight")
        same_norm(layer.feed_forward_norm, f"{at}.post_attention_layernorm.weight")
        same(layer.gate_up, f"{at}.mlp.gate_proj.weight", f"{at}.mlp.up_proj.weight")
        same(layer.down, f"{at}.mlp.down_proj.weight")
