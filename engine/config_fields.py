"""Fields of a model's description, taken one by one; what nobody takes must be known to be harmless."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from engine.errors import CheckpointError


class Fields:
    """Hands out the fields of one description, each once, and refuses what nobody asked for.

    Args:
        source: Names the file in errors.

    Every reader raises :class:`CheckpointError` naming the field, its value and what is needed.
    """

    def __init__(self, mapping: Mapping[str, object], source: str) -> None:
        self._left: dict[str, Any] = dict(mapping)
        self.source = source

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: object = None) -> Any:
        return self._left.pop(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number; absent and null both mean ``default``."""
        value = self.optional_size(name)
        value = default if value is None else value
        if value is None:
            raise self._missing(name)
        return value

    def optional_size(self, name: str, *, absent: int | None = None) -> int | None:
        """A positive whole number; None if null."""
        value = self.take(name, absent)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(name, value, "a positive whole number is needed")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A positive finite number; absent and null both mean ``default``."""
        value = self.optional_positive(name)
        value = default if value is None else value
        if value is None:
            raise self._missing(name)
        return value

    def optional_positive(self, name: str, *, absent: float | None = None) -> float | None:
        """A positive finite number; None if null."""
        value = self.take(name, absent)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(name, value, "a positive number is needed")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false is needed")
        return value

    def inner(self, name: str) -> Fields | None:
        """The fields of an object inside this one; None if absent or null."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{self.source}: {name} is {value!r}; an object or null is needed")
        return Fields(value, f"{self.source}: {name}")

    def refuse_rest(
        self,
        *,
        neutral: Collection[str] = (),
        neutral_prefixes: tuple[str, ...] = (),
        inert: Mapping[str, tuple[object, ...]] | None = None,
    ) -> None:
        """Check that every field not taken is known to leave the forward pass as it is.

        Args:
            neutral: Names of fields that never change it.
            inert: Fields that can, with the values at which they do not.
        """
        inert = inert or {}
        for name, value in self._left.items():
            if name in neutral or name.startswith(neutral_prefixes):
                continue
            if name not in inert:
                raise self.wrong(name, value, "this field is not supported")
            if value not in inert[name]:
                raise self.wrong(name, value, f"only {' or '.join(map(repr, inert[name]))} is supported")

    def wrong(self, name: str, value: object, need: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {name} is {value!r}; {need}")

    def _missing(self, name: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {name} is missing")
