"""The rotary embedding that a ``config.json`` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from engine.config_fields import Fields
from engine.errors import CheckpointError
from engine.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryScaling, YarnScaling, yarn_magnitude

_INERT: Final[Mapping[str, tuple[object, ...]]] = {"partial_rotary_factor": (1.0,)}


def hf_rotary(fields: Fields, max_positions: int, *, default_theta: float = 10_000.0) -> Rotary:
    """The one rotary embedding of a model, from the fields of older files or the record of newer ones.

    Raises:
        CheckpointError: the base or the scaling is stated twice, differently, or the scaling is
            of a kind that is not supported.
    """
    bases: dict[str, float] = {}
    if (plain := fields.optional_positive("rope_theta")) is not None:
        bases["rope_theta"] = plain
    scalings: list[RotaryScaling] = []
    for name in ("rope_scaling", "rope_parameters"):
        record = fields.inner(name)
        if record is None:
            continue
        if (inner := record.optional_positive("rope_theta")) is not None:
            bases[name] = inner
        if (scaling := _scaling(record, max_positions)) is not None:
            scalings.append(scaling)
    if len(set(bases.values())) > 1:
        raise CheckpointError(
            f"{fields.source}: the base of the rotary embedding is stated twice, differently: {bases}"
        )
    if len(set(scalings)) > 1:
        raise CheckpointError(f"{fields.source}: rope_scaling and rope_parameters scale differently")
    return Rotary(theta=next(iter(bases.values()), default_theta), scaling=scalings[0] if scalings else None)


def hf_rotary_record(record: Fields, *, max_positions: int, default_theta: float) -> Rotary:
    """The rotary embedding of one kind of layer, from a record of its own."""
    theta = record.positive("rope_theta", default_theta)
    return Rotary(theta=theta, scaling=_scaling(record, max_positions))


def _scaling(record: Fields, max_positions: int) -> RotaryScaling | None:
    kinds = {name: record.take(name) for name in ("rope_type", "type") if name in record}
    kind = next(iter(kinds.values()), "default")
    if len(set(map(repr, kinds.values()))) > 1:
        raise CheckpointError(f"{record.source}: the kind of scaling is stated twice, differently: {kinds}")
    scaling = None
    if kind != "default":
        if kind not in _SCALINGS:
            supported = " or ".join(map(repr, ["default", *_SCALINGS]))
            raise record.wrong(next(iter(kinds)), kind, f"only {supported} is supported")
        scaling = _SCALINGS[kind](record, max_positions)
    record.refuse_rest(inert=_INERT)
    return scaling


def _linear(record: Fields, _: int) -> RotaryScaling:
    return LinearScaling(factor=record.positive("factor"))


def _llama3(record: Fields, max_positions: int) -> RotaryScaling:
    scaling = Llama3Scaling(
        factor=record.positive("factor"),
        low_frequency_factor=record.positive("low_freq_factor"),
        high_frequency_factor=record.positive("high_freq_factor"),
        original_positions=record.size("original_max_position_embeddings", max_positions),
    )
    if scaling.high_frequency_factor <= scaling.low_frequency_factor:
        need = f"it must exceed low_freq_factor, {scaling.low_frequency_factor}"
        raise record.wrong("high_freq_factor", scaling.high_frequency_factor, need)
    return scaling


def _yarn(record: Fields, max_positions: int) -> RotaryScaling:
    factor = record.positive("factor")
    magnitude = record.optional_positive("attention_factor")
    weight, weight_below = record.optional_positive("mscale"), record.optional_positive("mscale_all_dim")
    if magnitude is None and weight is not None and weight_below is not None:
        magnitude = yarn_magnitude(factor, weight) / yarn_magnitude(factor, weight_below)
    scaling = YarnScaling(
        factor=factor,
        original_positions=record.size("original_max_position_embeddings", max_positions),
        magnitude=yarn_magnitude(factor) if magnitude is None else magnitude,
        fast_turns=record.positive("beta_fast", 32.0),
        slow_turns=record.positive("beta_slow", 1.0),
        truncate=record.flag("truncate", default=True),
    )
    if scaling.fast_turns <= scaling.slow_turns:
        raise record.wrong("beta_fast", scaling.fast_turns, f"it must exceed beta_slow, {scaling.slow_turns}")
    return scaling


_SCALINGS: Final[Mapping[object, Callable[[Fields, int], RotaryScaling]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
