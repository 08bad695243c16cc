"""Several dialects on one route, told apart by the keys of the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import ErrorForm
from scorer.errors import InvalidValue

_KEYS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class DialectChoice:
    """A route that speaks several dialects.

    Args:
        dialects: By the keys that a body of theirs has; the first whose keys are all there is
            spoken. ``name[0].key`` is a key of the first element of a list. A body that is no JSON
            object is left to the first that has the error form of the route, and refused there.
        error_form: For errors that come before the dialect is known; that of one of the dialects.
    """

    dialects: Sequence[tuple[frozenset[str], Dialect[Any]]]
    error_form: ErrorForm

    def choose(self, body: bytes) -> Dialect[Any]:
        """The dialect that ``body`` speaks.

        Raises:
            InvalidValue: its keys are those of no dialect; names all that would do.
        """
        keys = _keys_of(body)
        if keys is None:
            return next(dialect for _, dialect in self.dialects if dialect.error_form is self.error_form)
        for wanted, dialect in self.dialects:
            if all(_has(keys, key) for key in wanted):
                return dialect
        raise InvalidValue(f"the body must have {self._least()}", field="body")

    def _least(self) -> str:
        """The fewest keys that make a body one of a dialect, in words."""
        sets = [wanted for wanted, _ in self.dialects]
        least = dict.fromkeys(wanted for wanted in sets if not any(other < wanted for other in sets))
        return ", or ".join(" and ".join(f"`{key}`" for key in sorted(wanted)) for wanted in least)


def _keys_of(body: bytes | msgspec.Raw) -> Mapping[str, msgspec.Raw] | None:
    """The object with its values unread; None: it is none, or no JSON."""
    try:
        return _KEYS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _has(keys: Mapping[str, msgspec.Raw], wanted: str) -> bool:
    name, _, inner = wanted.partition("[0].")
    if not inner:
        return name in keys
    try:
        elements = _ELEMENTS.decode(keys.get(name, b"[]"))
    except msgspec.DecodeError:
        return False
    return bool(elements) and inner in (_keys_of(elements[0]) or {})
