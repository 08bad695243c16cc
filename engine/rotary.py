"""Frequencies of a rotary embedding (Su et al. 2021), plain or stretched over a longer context. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class RotaryScaling(Protocol):
    """How a model that was trained on a shorter context reads a longer one."""

    @property
    def magnitude(self) -> float:
        """Factor on every cosine and sine."""
        ...

    def scale(self, frequencies: list[float], theta: float) -> list[float]:
        """The frequencies in place of the plain ones, greatest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """One rotary embedding; layers that have equal ones share its tables.

    Args:
        theta: Base: pair ``i`` of a head of ``D`` elements turns by ``theta ** (-2 i / D)`` a position.
    """

    theta: float
    scaling: RotaryScaling | None = None

    def frequencies(self, head_dim: int) -> list[float]:
        """Radians per position of each of the ``head_dim / 2`` pairs."""
        plain = [self.theta ** (-pair / head_dim) for pair in range(0, head_dim, 2)]
        return plain if self.scaling is None else self.scaling.scale(plain, self.theta)

    @property
    def magnitude(self) -> float:
        """Factor on every cosine and sine."""
        return 1.0 if self.scaling is None else self.scaling.magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions count ``1 / factor`` (Chen et al. 2023, position interpolation)."""

    factor: float
    magnitude: float = 1.0

    def scale(self, frequencies: list[float], theta: float) -> list[float]:  # noqa: ARG002
        return [frequency / self.factor for frequency in frequencies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Slow pairs are interpolated, fast ones left alone, those between blended (Llama 3.1).

    Args:
        original_positions: Context that the plain embedding was trained on.
        low_frequency_factor: A pair that turns fewer times than this in it is slow.
        high_frequency_factor: A pair that turns more often than this in it is fast.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int
    magnitude: float = 1.0

    def scale(self, frequencies: list[float], theta: float) -> list[float]:  # noqa: ARG002
        return [self._blend(frequency) for frequency in frequencies]

    def _blend(self, frequency: float) -> float:
        turns = self.original_positions * frequency / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        return frequency * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Interpolation of slow pairs and a longer query and key (Peng et al. 2023, YaRN).

    Args:
        fast_turns, slow_turns: Turns within the original context from which a pair is left
            alone, and up to which it is interpolated; between them it is blended.
        truncate: Whether the pairs at which blending starts and ends are whole numbers.
    """

    factor: float
    original_positions: int
    magnitude: float
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    truncate: bool = True

    def scale(self, frequencies: list[float], theta: float) -> list[float]:
        head_dim = 2 * len(frequencies)

        def pair_that_turns(turns: float) -> float:
            return head_dim * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first, last = pair_that_turns(self.fast_turns), pair_that_turns(self.slow_turns)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        width = max(last - first, 0.001)  # no pair lies between: a step
        scaled = []
        for pair, frequency in enumerate(frequencies):
            interpolated = min(1.0, max(0.0, (pair - first) / width))
            scaled.append(frequency * (1 - interpolated + interpolated / self.factor))
        return scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedFrequencies:
    """Each pair has a divisor of its own, as GGUF files store what :class:`Llama3Scaling` works out."""

    divisors: tuple[float, ...]
    magnitude: float = 1.0

    def scale(self, frequencies: list[float], theta: float) -> list[float]:  # noqa: ARG002
        return [frequency / divisor for frequency, divisor in zip(frequencies, self.divisors, strict=True)]


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """The factor on cosines and sines that the YaRN paper suggests; ``weight`` scales its growth."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
