"""Cuts a text that arrives in pieces at the first of its stop texts."""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Gives what comes before a stop text, and nothing that may still turn out to be part of one.

    The first stop text is the one that is complete first, read character by character (of those that
    are complete at once, the longest): where a text is cut does not hang on the pieces it comes in.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """What is known to belong to the text since the last call; nothing once it has stopped."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        settled = len(text) - max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[settled:]
        return text[:settled]

    def flush(self) -> str:
        """What was held back, when no piece follows."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
