"""Phi 3 and 3.5: a Llama whose query, key and value are one matrix, and gate and up another."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.config_fields import Fields
from engine.errors import CheckpointError
from engine.families.gguf import GgufFamily
from engine.families.hf import HfDefaults, HfFamily, plain_decoder, with_windows
from engine.families.hf_rotary import hf_rotary
from engine.model_config import ModelConfig, StoredForm


def _phi3(fields: Fields) -> ModelConfig:
    plain = plain_decoder(fields, HfDefaults(max_positions=4096, rms_norm_eps=1e-5), hf_rotary)
    if (scaling := plain.layers[0].rotary.scaling) is not None:
        # transformers takes any other kind for longrope
        raise CheckpointError(f"{fields.source}: this family has no rotary scaling but longrope, got {scaling}")
    return _with_window(fields, plain, fields.optional_size("sliding_window"))


def _gguf_phi3(fields: Fields, plain: ModelConfig) -> ModelConfig:
    window = fields.take("phi3.attention.sliding_window", 0)
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise fields.wrong("phi3.attention.sliding_window", window, "a whole number is needed")
    return _with_window(fields, plain, window or None)


def _with_window(fields: Fields, plain: ModelConfig, window: int | None) -> ModelConfig:
    sliding = [window is not None] * plain.num_layers
    layers = with_windows(fields, sliding, window, full=plain.layers[0].rotary)
    return replace(plain, layers=layers, stored=StoredForm(fused=True))


HF: Final = {
    "Phi3ForCausalLM": HfFamily(
        read=_phi3,
        # auto_map names code from before transformers had this family; the other is read by scaled
        # rotary embeddings only, of which this family's own kind is not supported
        neutral=frozenset({"auto_map", "original_max_position_embeddings"}),
        inert={"embd_pdrop": (0.0,), "hidden_act": ("silu",), "model_type": ("phi3",), "resid_pdrop": (0.0,)},
    )
}

GGUF: Final = {"phi3": GgufFamily(complete=_gguf_phi3)}
