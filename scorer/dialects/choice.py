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


@dataclass(frozen=True, slots=True)
class DialectChoice:
    """A route that speaks several dialects.

    Args:
        dialects: By the keys that a body of theirs has; the first whose keys are all there is
            spoken. A body that is no JSON object is left to the first, which refuses it.
        error_form: For errors that come before the dialect is known.
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
            return self.dialects[0][1]
        for wanted, dialect in self.dialects:
            if wanted <= keys.keys():
                return dialect
        accepted = "; ".join(", ".join(sorted(wanted)) for wanted, _ in self.dialects)
        raise InvalidValue(f"the body has the keys of no dialect of this route; they are {accepted}", field="body")


def _keys_of(body: bytes) -> Mapping[str, object] | None:
    """The object with its values unread; None: it is none, or no JSON."""
    try:
        return _KEYS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
