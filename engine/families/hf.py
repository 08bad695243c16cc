"""What all families have in common in a ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.config_fields import Fields
from engine.errors import CheckpointError
from engine.model_config import LayerAttention, ModelConfig
from engine.rotary import Rotary

# Fields that describe training, generation, storage or the library that wrote the file.
# The forward pass is the same whatever they hold.
NEUTRAL: Final = frozenset({
    "_attn_implementation_autoset", "_name_or_path", "_sliding_window_pattern", "bos_token_id", "cache_implementation",
    "do_sample", "dtype", "eos_token_id", "id2label", "initializer_range", "label2id", "max_length", "min_length",
    "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "repetition_penalty", "return_dict",
    "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_cache",
})  # fmt: skip

# Fields that can change the forward pass, with the values at which they do not.
INERT: Final[Mapping[str, tuple[object, ...]]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attention_dropout": (0.0,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "pruned_heads": ({},),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "tie_encoder_decoder": (False,),
}

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFamily:
    """How one architecture of ``transformers`` is read.

    Args:
        neutral: Fields beyond :data:`NEUTRAL` that never change the forward pass.
        inert: Fields beyond :data:`INERT`, or in their place, that must have one of these values.
    """

    read: Callable[[Fields], ModelConfig]
    neutral: frozenset[str] = frozenset()
    inert: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HfDefaults:
    """What a family's fields are when they are left out; None: the field may not be.

    Args:
        num_kv_heads: None: as many as query heads.
        head_dim: None: what each query head gets of the hidden size.
    """

    max_positions: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False


def plain_decoder(fields: Fields, defaults: HfDefaults, rotary: Callable[[Fields, int], Rotary]) -> ModelConfig:
    """The sizes of a decoder with one rotary embedding and no window; families replace what differs.

    Args:
        fields: ``architectures`` is the one name, not a list.
        rotary: Given the fields and the greatest number of positions.
    """
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", defaults.head_dim or even_share(hidden_size, num_heads))
    max_positions = fields.size("max_position_embeddings", defaults.max_positions)
    layer = LayerAttention(rotary=rotary(fields, max_positions))
    return ModelConfig(
        architecture=fields.take("architectures"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.optional_size("num_key_value_heads", absent=defaults.num_kv_heads) or num_heads,
        head_dim=head_dim,
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=fields.size("vocab_size"),
        max_positions=max_positions,
        rms_norm_eps=fields.positive("rms_norm_eps", defaults.rms_norm_eps),
        layers=(layer,) * fields.size("num_hidden_layers"),
        query_scale=head_dim**-0.5,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=defaults.tie_word_embeddings),
    )


def layer_types(fields: Fields, num_layers: int, default: Callable[[int], bool]) -> list[bool]:
    """For each layer whether it has the window: what ``layer_types`` says, or ``default`` of its number.

    Raises:
        CheckpointError: the list has another length or names another kind of layer.
    """
    kinds = fields.take("layer_types")
    if kinds is None:
        return [default(number) for number in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.wrong("layer_types", kinds, f"a list of {num_layers} entries is needed, one per layer")
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise fields.wrong("layer_types", kind, f"only {_FULL!r} or {_SLIDING!r} is supported")
    return [kind == _SLIDING for kind in kinds]


def with_windows(
    fields: Fields, sliding: list[bool], window: int | None, *, full: Rotary, local: Rotary | None = None
) -> tuple[LayerAttention, ...]:
    """The layers, of which those in ``sliding`` see ``window`` positions.

    Args:
        local: Rotary embedding of the layers with a window, if it is one of their own.

    Raises:
        CheckpointError: a layer has a window of no size.
    """
    if any(sliding) and window is None:
        raise CheckpointError(f"{fields.source}: layers with a sliding window are asked for; sliding_window is null")
    windowed = LayerAttention(rotary=local or full, window=window)
    return tuple(windowed if each else LayerAttention(rotary=full) for each in sliding)


def even_share(hidden_size: int, num_heads: int) -> int | None:
    """Head size where none is stated; None, hence an error, where heads do not divide the width."""
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None
