"""How many positions a perfect prefix cache computes, counted without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.workloads import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a phase costs at the least.

    Args:
        received: Tokens of all prompts.
        unique: Positions that are neither cached before the phase nor shared within it.
        attended: Keys that those positions look at, themselves included, summed up.
    """

    received: int
    unique: int
    attended: int


class PerfectCache:
    """Remembers every prefix for ever and computes each position once."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}  # (number of the prefix before, token) -> number of the prefix
        self._kept: set[int] = set()

    def run(self, phase: Phase) -> Work:
        """Count the work of ``phase`` and keep its prefixes.

        Rows that are sent one by one share what is kept, but nothing else.
        """
        computed: set[int] = set()
        unique = attended = 0
        for group in phase.groups:
            for tail in group.tails:
                for position, place in enumerate(self._path(group.prefix + tail)):
                    if place not in self._kept and place not in computed:
                        computed.add(place)
                        unique += 1
                        attended += position + 1
                if phase.kind == "one_by_one":
                    computed.clear()
                    self._kept.update(self._path(group.prefix))
        for group in phase.groups:
            self._kept.update(self._path(group.prefix))
        return Work(received=phase.prompt_tokens, unique=unique, attended=attended)

    def _path(self, tokens: Sequence[int]) -> list[int]:
        path, place = [], 0
        for token in tokens:
            place = self._places.setdefault((place, token), len(self._places) + 1)
            path.append(place)
        return path
