"""The shape of a decoder, read from a checkpoint and checked field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import CheckpointError

HF_ARCHITECTURES: Final = ("LlamaForCausalLM",)
GGUF_ARCHITECTURES: Final = ("llama",)

# Fields of config.json that describe training, generation, storage or the library that wrote
# the file. The forward pass is the same whatever they hold.
_HF_NEUTRAL: Final = frozenset({
    "_attn_implementation_autoset", "_name_or_path", "bos_token_id", "do_sample", "dtype", "eos_token_id", "id2label",
    "initializer_range", "is_llama_config", "label2id", "max_length", "min_length", "output_attentions",
    "output_hidden_states", "pad_token_id", "problem_type", "repetition_penalty", "return_dict",
    "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_cache",
})  # fmt: skip

# Fields that can change the forward pass, with the values at which they do not.
_HF_INERT: Final[Mapping[str, tuple[object, ...]]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attention_dropout": (0.0,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "hidden_act": ("silu",),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "mlp_bias": (False,),
    "model_type": ("llama",),
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "quantization_config": (None,),
    "rope_interleaved": (False,),
    "sliding_window": (None,),
    "tie_encoder_decoder": (False,),
}

# The plain rotary embedding; any other kind scales its frequencies.
_HF_INERT_ROPE: Final[Mapping[str, tuple[object, ...]]] = {
    "partial_rotary_factor": (1.0,),
    "rope_type": ("default",),
    "type": ("default",),
}

# Metadata that names, licenses or tokenises, and what tools note about how they quantised.
_GGUF_NEUTRAL_PREFIXES: Final = ("general.", "tokenizer.", "quantize.", "mradermacher.")

_GGUF_INERT: Final[Mapping[str, tuple[object, ...]]] = {
    "llama.attention.causal": (True,),
    "llama.attention.sliding_window": (0,),
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "llama.rope.scale_linear": (1.0,),
    "llama.rope.scaling.factor": (1.0,),
    "llama.rope.scaling.finetuned": (False,),
    "llama.rope.scaling.type": ("none",),
    "llama.tensor_data_layout": ("Meta AI original pth",),
    "split.count": (0, 1),
    "split.no": (0,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One Llama-shaped decoder: pre-norm, RoPE in half-split form, gated SiLU feed-forward."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """``2 × layers × kv_heads × head_dim × element_bytes`` (K and V of every layer)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes

    @property
    def num_parameters(self) -> int:
        """Elements of all weights; a head tied to the embedding counts once."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        layer = attention + feed_forward + 2 * self.hidden_size
        vocabulary = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + vocabulary + self.hidden_size


def config_from_hf(mapping: Mapping[str, object], source: str) -> ModelConfig:
    """The decoder that a ``config.json`` describes.

    A field that may be left out takes the default of ``LlamaConfig``; sizes may not.

    Args:
        source: Names the file in errors.

    Raises:
        CheckpointError: the architecture is not supported, or a field is missing, has a value
            that makes no sense, or asks for something this decoder does not do.
    """
    fields = _Fields(mapping, source)
    architecture = _supported(fields.take("architectures", None), HF_ARCHITECTURES, source)
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    config = ModelConfig(
        architecture=architecture,
        num_layers=fields.size("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=fields.size("head_dim", _even_share(hidden_size, num_heads)),
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        max_positions=fields.size("max_position_embeddings", 2048),
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=_hf_rope_theta(fields, source),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
    )
    fields.refuse_rest(_HF_NEUTRAL, (), _HF_INERT)
    return _consistent(config, source)


def config_from_gguf(metadata: Mapping[str, object], source: str, *, has_head: bool) -> ModelConfig:
    """The decoder that the metadata of a GGUF file describes.

    Args:
        source: Names the file in errors.
        has_head: The file holds an output matrix of its own; otherwise the embedding is it.

    Raises:
        CheckpointError: as for ``config_from_hf``.
    """
    fields = _Fields(metadata, source)
    architecture = _supported(fields.take("general.architecture", None), GGUF_ARCHITECTURES, source)
    if (kind := fields.take("general.type", "model")) != "model":
        raise CheckpointError(f"{source}: general.type is {kind!r}; a whole 'model' is needed")
    hidden_size, num_heads = fields.size("llama.embedding_length"), fields.size("llama.attention.head_count")
    head_dim = fields.size("llama.attention.key_length", _even_share(hidden_size, num_heads))
    for same in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if (size := fields.size(same, head_dim)) != head_dim:
            raise CheckpointError(f"{source}: {same} is {size}; it must equal the head size, {head_dim}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    config = ModelConfig(
        architecture=architecture,
        num_layers=fields.size("llama.block_count"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.size("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.size("llama.feed_forward_length"),
        vocab_size=fields.size("llama.vocab_size", len(tokens) if isinstance(tokens, list) else None),
        max_positions=fields.size("llama.context_length"),
        rms_norm_eps=fields.positive("llama.attention.layer_norm_rms_epsilon", None),
        rope_theta=fields.positive("llama.rope.freq_base", 10_000.0),
        tie_word_embeddings=not has_head,
    )
    fields.refuse_rest(frozenset(), _GGUF_NEUTRAL_PREFIXES, _GGUF_INERT)
    return _consistent(config, source)


class _Fields:
    """Hands out the fields of one config, each once, and refuses what nobody asked for."""

    def __init__(self, mapping: Mapping[str, object], source: str) -> None:
        self._left: dict[str, Any] = dict(mapping)
        self._source = source

    def take(self, name: str, default: object) -> Any:
        return self._left.pop(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number; absent and null both mean ``default``."""
        value = self.take(name, None)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self._source}: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "a positive whole number is needed")
        return value

    def positive(self, name: str, default: float | None) -> float:
        value = self.take(name, None)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self._source}: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._wrong(name, value, "a positive number is needed")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false is needed")
        return value

    def refuse_rest(
        self, neutral: frozenset[str], neutral_prefixes: tuple[str, ...], inert: Mapping[str, tuple[object, ...]]
    ) -> None:
        """Check that every field not taken is known to leave the forward pass as it is."""
        for name, value in self._left.items():
            if name in neutral or name.startswith(neutral_prefixes):
                continue
            if name not in inert:
                raise self._wrong(name, value, "this field is not supported")
            if value not in inert[name]:
                raise self._wrong(name, value, f"only {' or '.join(map(repr, inert[name]))} is supported")

    def _wrong(self, name: str, value: object, need: str) -> CheckpointError:
        return CheckpointError(f"{self._source}: {name} is {value!r}; {need}")


def _supported(value: object, known: tuple[str, ...], source: str) -> str:
    name = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(name, str) or name not in known:
        got = "not stated" if value is None else repr(name)
        raise CheckpointError(f"{source}: the architecture is {got}; supported: {', '.join(known)}")
    return name


def _even_share(hidden_size: int, num_heads: int) -> int | None:
    """Head size where none is stated; None, hence an error, where heads do not divide the width."""
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None


def _hf_rope_theta(fields: _Fields, source: str) -> float:
    """Base of the rotary embedding, from the field of older files or the record of newer ones."""
    bases: dict[str, float] = {}
    if (plain := fields.take("rope_theta", None)) is not None:
        bases["rope_theta"] = _Fields({"rope_theta": plain}, source).positive("rope_theta", None)
    for name in ("rope_scaling", "rope_parameters"):
        record = fields.take(name, None)
        if record is None:
            continue
        if not isinstance(record, Mapping):
            raise CheckpointError(f"{source}: {name} is {record!r}; an object or null is needed")
        inner = _Fields(record, f"{source}: {name}")
        if "rope_theta" in record:
            bases[name] = inner.positive("rope_theta", None)
        inner.refuse_rest(frozenset(), (), _HF_INERT_ROPE)
    if len(set(bases.values())) > 1:
        raise CheckpointError(f"{source}: the base of the rotary embedding is stated twice, differently: {bases}")
    return next(iter(bases.values()), 10_000.0)


def _consistent(config: ModelConfig, source: str) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{source}: {config.num_heads} query heads cannot be shared evenly by {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{source}: the head size is {config.head_dim}; rotary embedding needs an even one")
    return config
