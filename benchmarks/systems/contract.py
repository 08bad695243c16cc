"""What a system must do to be measured."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from benchmarks.messages import Profile, Started
from benchmarks.workloads import Group


class SystemUnavailableError(Exception):
    """A system cannot be measured here; the message says what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Scores of one group, in the order of its rows.

    Args:
        log_odds: Logit of the first label less that of the second.
        received: Tokens of the prompts as the system counts them; None: those of the group.
        forward_s: Time of the forward passes that the group took part in; None where the system does not tell.
    """

    log_odds: tuple[float, ...]
    cached_by_row: tuple[int, ...] = ()
    computed_by_row: tuple[int, ...] = ()
    received: int | None = None
    forward_s: float | None = None


class System(Protocol):
    """Scores groups. Made in a process of its own and called from one thread."""

    def started(self) -> Started: ...

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        """Begin to score ``group``; prefixes found under another namespace are not reused if the
        system can help it. A system that can do one thing at a time may return when it is done."""
        ...

    def computed_tokens(self) -> int | None:
        """Positions run since the start, padding included; None if it cannot be known."""
        ...

    def exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        """Log-odds of whole prompts in float32.

        Raises:
            SystemUnavailableError: this system has no float32 mode.
        """
        ...

    def forget(self) -> None: ...

    @property
    def is_remote(self) -> bool:
        """The work is done in another process, so processor time here is the client's."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Profilable(Protocol):
    """A system that can say where its time went."""

    def profile(self) -> Profile:
        """Costs since the last call."""
        ...
