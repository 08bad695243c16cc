"""What all families have in common in the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.config_fields import Fields
from engine.errors import CheckpointError
from engine.families.hf import even_share
from engine.model_config import LayerAttention, ModelConfig
from engine.rotary import DividedFrequencies, LinearScaling, Rotary, RotaryScaling, YarnScaling, yarn_magnitude

# Metadata that names, licenses or tokenises, and what tools note about how they quantised.
NEUTRAL_PREFIXES: Final = ("general.", "tokenizer.", "quantize.", "mradermacher.")

# Fields that can change the forward pass, with the values at which they do not; below the
# architecture's name, except for the last two.
_INERT: Final[Mapping[str, tuple[object, ...]]] = {
    "attention.causal": (True,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.factor": (1.0,),
    "rope.scaling.finetuned": (False, True),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
}
_INERT_OF_FILE: Final[Mapping[str, tuple[object, ...]]] = {"split.count": (0, 1), "split.no": (0,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """How one architecture of ``llama.cpp`` is read.

    Args:
        complete: Given the fields that are left and a decoder with one rotary embedding and no
            window, replaces what differs.
        inert: Fields below the architecture's name that must have one of these values.
    """

    complete: Callable[[Fields, ModelConfig], ModelConfig]
    default_theta: float = 10_000.0
    inert: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def read_decoder(
    fields: Fields,
    family: GgufFamily,
    name: str,
    *,
    num_tokens: int | None,
    has_head: bool,
    rotary_divisors: tuple[float, ...] | None,
) -> ModelConfig:
    """The decoder of architecture ``name``.

    Args:
        num_tokens: Length of the file's vocabulary, if it has one.
        has_head: The file holds an output matrix of its own; otherwise the embedding is it.
        rotary_divisors: One for each pair of a head, if the file holds them.
    """
    hidden_size, num_heads = fields.size(f"{name}.embedding_length"), fields.size(f"{name}.attention.head_count")
    head_dim = fields.size(f"{name}.attention.key_length", even_share(hidden_size, num_heads))
    for same in ("attention.value_length", "rope.dimension_count"):
        if (size := fields.size(f"{name}.{same}", head_dim)) != head_dim:
            raise fields.wrong(f"{name}.{same}", size, f"it must equal the head size, {head_dim}")
    theta = fields.positive(f"{name}.rope.freq_base", family.default_theta)
    rotary = Rotary(theta=theta, scaling=_scaling(fields, name, rotary_divisors, head_dim))
    plain = ModelConfig(
        architecture=name,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.size(f"{name}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.size(f"{name}.feed_forward_length"),
        vocab_size=fields.size(f"{name}.vocab_size", num_tokens),
        max_positions=fields.size(f"{name}.context_length"),
        rms_norm_eps=fields.positive(f"{name}.attention.layer_norm_rms_epsilon"),
        layers=(LayerAttention(rotary=rotary),) * fields.size(f"{name}.block_count"),
        query_scale=head_dim**-0.5,
        tie_word_embeddings=not has_head,
    )
    config = family.complete(fields, plain)
    inert = {f"{name}.{key}": values for key, values in {**_INERT, **family.inert}.items()}
    fields.refuse_rest(neutral_prefixes=NEUTRAL_PREFIXES, inert={**inert, **_INERT_OF_FILE})
    return config


def _scaling(fields: Fields, name: str, divisors: tuple[float, ...] | None, head_dim: int) -> RotaryScaling | None:
    kind = fields.take(f"{name}.rope.scaling.type", "none")
    if divisors is not None:
        if kind != "none" or len(divisors) != head_dim // 2:
            raise CheckpointError(
                f"{fields.source}: {len(divisors)} divisors of rotary frequencies and scaling {kind!r} are given; "
                f"{head_dim // 2} divisors without scaling are needed"
            )
        return DividedFrequencies(divisors=divisors)
    if kind == "none":
        return None
    if kind == "linear":
        return LinearScaling(factor=fields.positive(f"{name}.rope.scaling.factor"))
    if kind == "yarn":
        factor = fields.positive(f"{name}.rope.scaling.factor")
        return YarnScaling(
            factor=factor,
            original_positions=fields.size(f"{name}.rope.scaling.original_context_length"),
            magnitude=yarn_magnitude(factor),
            fast_turns=fields.positive(f"{name}.rope.scaling.yarn_beta_fast", 32.0),
            slow_turns=fields.positive(f"{name}.rope.scaling.yarn_beta_slow", 1.0),
        )
    raise fields.wrong(f"{name}.rope.scaling.type", kind, "only 'none' or 'linear' or 'yarn' is supported")
