"""Tokens of a generation to text as they come: whole characters, cut at stop texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from engine import BranchEnd, GenerateResult
from scorer.generation.schema import GenerateText
from scorer.generation.stop_texts import StopCutter

Decode: TypeAlias = Callable[[Sequence[int]], str]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LEAD_TOKENS = 8


class BranchText:
    """The text of one branch.

    Args:
        prompt: Its last tokens come before those of the branch wherever they are decoded: some
            decoders treat the start of a text in a way of its own.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._decode = decode
        self._ids = list(prompt[-_LEAD_TOKENS:])
        self._start = len(decode(self._ids))
        self._read = 0  # characters given to the cutter
        self._cutter = StopCutter(stops)
        self.text = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop text has come."""
        return self._cutter.stopped

    def add(self, token: int) -> str:
        """The text that has become certain with ``token``."""
        self._ids.append(token)
        # bytes of a character whose rest may follow are decoded as this mark
        return self._give(self._decode(self._ids)[self._start :].rstrip(_UNFINISHED))

    def finish(self) -> str:
        """The rest, when no token follows."""
        return self._give(self._decode(self._ids)[self._start :]) + self._flush()

    def _give(self, whole: str) -> str:
        piece = self._cutter.feed(whole[self._read :])
        self._read = max(self._read, len(whole))
        self.text += piece
        return piece

    def _flush(self) -> str:
        rest = self._cutter.flush()
        self.text += rest
        return rest


class BranchTexts:
    """Listens to a generation (:class:`engine.records.TokenListener`) and tells what becomes text.

    Args:
        tell: Called for every new piece of text and for every end, on the thread it is listened on.
    """

    def __init__(self, branches: Sequence[BranchText], tell: Callable[[GenerateText], None]) -> None:
        self.branches = branches
        self._tell = tell
        self._ended: set[int] = set()

    def on_token(self, branch: int, token: int) -> bool:
        own = self.branches[branch]
        if piece := own.add(token):
            self._tell(GenerateText(index=branch, text=piece, finish_reason=None))
        return not own.stopped

    def on_end(self, branch: int, end: BranchEnd) -> None:
        self._ended.add(branch)
        self._tell(GenerateText(index=branch, text=self.branches[branch].finish(), finish_reason=end))

    def close(self, result: GenerateResult) -> list[GenerateText]:
        """End the branches that the engine left open, and return what is left of their text."""
        return [
            GenerateText(index=number, text=self.branches[number].finish(), finish_reason=branch.end)
            for number, branch in enumerate(result.branches)
            if number not in self._ended
        ]
