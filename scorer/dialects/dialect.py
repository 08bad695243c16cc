"""One way to ask for scores and to answer, as the service and the routes see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from scorer.dialects.error_forms import ErrorForm, native_error
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.request_plan import InternalRequest

T = TypeVar("T")

WireReply: TypeAlias = msgspec.Struct | list[Any]
"""What is encoded as the body of an answer: an object, or the bare array of some dialects."""


def _no_salt(_spoken: object) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(Generic[T]):
    """One way to ask for scores and to answer.

    Args:
        decode: Body to the dialect's own request.
        to_request: What is to be scored: texts under a template, or prompts of the caller's own.
        reply: The wire form of the answer; may refuse a batch that it cannot express.
        error_form: The wire form of errors.
        partial: Whether an answer may lack items. If not, one that cannot be built is enough to
            refuse the request before anything runs.
        salt: Parts the cache: requests meet only those with the same salt in it.
    """

    decode: Callable[[bytes], T]
    to_request: Callable[[T], InternalRequest]
    reply: Callable[[T, ScoredBatch], WireReply]
    error_form: ErrorForm = native_error
    partial: bool = True
    salt: Callable[[T], str | None] = _no_salt

    def choose(self, _body: bytes) -> Dialect[T]:
        """Itself: a route that speaks one dialect has no choice."""
        return self


class Speech(Protocol):
    """What a route speaks: one dialect, or several that are told apart by the body.

    ``error_form`` is for errors that come before the dialect is known.
    """

    @property
    def error_form(self) -> ErrorForm: ...

    def choose(self, body: bytes) -> Dialect[Any]:
        """The dialect that ``body`` speaks.

        Raises:
            Refusal: it speaks none of them.
        """
        ...
