"""Reads the description of a model of any supported family into one :class:`~engine.model_config.ModelConfig`.

One small module per family says what sets it apart; the decoder reads the result and knows no family.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from engine.config_fields import Fields
from engine.errors import CheckpointError
from engine.families import gemma, gguf, hf, llama, phi, qwen
from engine.model_config import ModelConfig, check_consistent

_HF: Final = {**llama.HF, **qwen.HF, **gemma.HF, **phi.HF}
_GGUF: Final = {**llama.GGUF, **qwen.GGUF, **gemma.GGUF, **phi.GGUF}


def config_from_hf(mapping: Mapping[str, object], source: str) -> ModelConfig:
    """The decoder that a ``config.json`` describes.

    A field that may be left out takes the default of its family in ``transformers``; sizes may not.

    Args:
        source: Names the file in errors.

    Raises:
        CheckpointError: the architecture is not supported, or a field is missing, has a value
            that makes no sense, or asks for something this decoder does not do.
    """
    named = mapping.get("architectures")
    name = _supported(named[0] if isinstance(named, list) and len(named) == 1 else named, _HF, source)
    family, fields = _HF[name], Fields({**mapping, "architectures": name}, source)
    config = family.read(fields)
    fields.refuse_rest(neutral=hf.NEUTRAL | family.neutral, inert={**hf.INERT, **family.inert})
    return check_consistent(config, source)


def config_from_gguf(
    metadata: Mapping[str, object],
    source: str,
    *,
    has_head: bool,
    rotary_divisors: tuple[float, ...] | None = None,
) -> ModelConfig:
    """The decoder that the metadata of a GGUF file describes.

    Args:
        source: Names the file in errors.
        has_head: The file holds an output matrix of its own; otherwise the embedding is it.
        rotary_divisors: What the file divides the frequency of each pair of a head by, if it does.

    Raises:
        CheckpointError: as for ``config_from_hf``.
    """
    fields = Fields(metadata, source)
    name = _supported(fields.take("general.architecture"), _GGUF, source)
    if (kind := fields.take("general.type", "model")) != "model":
        raise CheckpointError(f"{source}: general.type is {kind!r}; a whole 'model' is needed")
    tokens = metadata.get("tokenizer.ggml.tokens")
    config = gguf.read_decoder(
        fields,
        _GGUF[name],
        name,
        num_tokens=len(tokens) if isinstance(tokens, list) else None,
        has_head=has_head,
        rotary_divisors=rotary_divisors,
    )
    return check_consistent(config, source)


def _supported(name: object, known: Collection[str], source: str) -> str:
    if not isinstance(name, str) or name not in known:
        got = "not stated" if name is None else repr(name)
        raise CheckpointError(f"{source}: the architecture is {got}; supported: {', '.join(known)}")
    return name
