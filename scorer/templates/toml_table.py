"""One table of a TOML file, read key by key so that every complaint names file, key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

Choice = TypeVar("Choice", bound=str)


class TomlTable:
    """Hands out checked values and remembers which keys were asked for.

    Args:
        values: The parsed table.
        source: File name, for messages.
        error: What to raise; its argument is the message.
        path: Keys that lead to this table.
    """

    def __init__(
        self, values: Mapping[str, Any], *, source: str, error: type[Exception], path: tuple[str, ...] = ()
    ) -> None:
        self._values = values
        self._source = source
        self._error = error
        self._path = path
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            self.fail(key, value, "text")
        return value

    def integer(self, key: str, *, at_least: int) -> int:
        value = self._take(key, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            self.fail(key, value, f"a whole number of at least {at_least}")
        return value

    def number(self, key: str, *, default: float) -> float:
        value = self._take(key, default)
        if not _is_number(value):
            self.fail(key, value, "a finite number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self._take(key, None)
        if not isinstance(values, list) or not all(map(_is_number, values)):
            self.fail(key, values, "a list of finite numbers")
        return tuple(map(float, values))

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value

    def choice(self, key: str, choices: Sequence[Choice], *, default: Choice | None = None) -> Choice:
        value = self._take(key, default)
        chosen = next((choice for choice in choices if choice == value), None)
        if chosen is None:
            self.fail(key, value, " or ".join(choices))
        return chosen

    def texts(self, key: str, *, default: Sequence[str] | None = None) -> tuple[str, ...]:
        values = self._take(key, default)
        if isinstance(values, str) or not isinstance(values, Sequence):
            self.fail(key, values, "a list of texts")
        for value in values:
            if not isinstance(value, str):
                self.fail(key, value, "a list of texts")
        return tuple(values)

    def entries(self, key: str) -> list[str | TomlTable]:
        """A list of texts and tables that is not empty."""
        values = self._take(key, None)
        if not isinstance(values, list) or not values:
            self.fail(key, values, "a list that is not empty")
        return [self._entry(key, index, value) for index, value in enumerate(values)]

    def _entry(self, key: str, index: int, value: object) -> str | TomlTable:
        if isinstance(value, str):
            return value
        if not isinstance(value, dict):
            self.fail(key, value, "texts and tables only")
        return TomlTable(value, source=self._source, error=self._error, path=(*self._path, key, str(index)))

    def table(self, key: str) -> TomlTable:
        value = self._take(key, None)
        if not isinstance(value, dict):
            self.fail(key, value, "a table")
        return TomlTable(value, source=self._source, error=self._error, path=(*self._path, key))

    def done(self) -> None:
        """Refuse what nobody asked for."""
        for key in self._values.keys() - self._asked:
            self.fail(key, self._values[key], f"no such key; the keys are {', '.join(sorted(self._asked))}")

    def fail(self, key: str, value: object, wanted: str) -> NoReturn:
        """Raise the error of this file for one of its values."""
        shown = f"{value!r:.200}"
        raise self._error(f"{self._source}: {'.'.join((*self._path, key))} is {shown}; wanted {wanted}")

    def _take(self, key: str, default: object) -> Any:
        self._asked.add(key)
        if key in self._values:
            return self._values[key]
        if default is None:
            raise self._error(f"{self._source}: {'.'.join((*self._path, key))} is missing")
        return default


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
