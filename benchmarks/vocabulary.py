"""Words that are one token each, and the tokens around them; for the default model only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

_WORDS = Path(__file__).with_name("words.json")


class VocabularyError(Exception):
    """The model's tokenizer does not give the ids that the workloads are made of."""


class _File(msgspec.Struct, frozen=True):
    model: str
    system_open: tuple[int, ...]
    system_to_user: tuple[int, ...]
    close: tuple[int, ...]
    labels: dict[str, int]
    words: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What token runs are written with.

    Every word, with a space before it, is one token wherever it stands, so a run of words is
    as long in text as in tokens.

    Args:
        model: Name of the model whose ids these are.
        system_open, system_to_user, close: Chat tokens that open a prompt, lead from the
            system's turn to the user's, and from there to the answer.
        labels: The two ids whose logits are compared: first minus second is the score.
    """

    model: str
    system_open: tuple[int, ...]
    system_to_user: tuple[int, ...]
    close: tuple[int, ...]
    labels: tuple[int, int]
    words: Mapping[str, int]

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.words.values())

    @cached_property
    def _texts(self) -> Mapping[int, str]:
        return {token: word for word, token in self.words.items()}

    def text(self, tokens: Sequence[int]) -> str:
        """The words of ``tokens``, one space between two; tokens that are no words are left out."""
        return " ".join(self._texts[token] for token in tokens if token in self._texts)

    def turned(self, by: int) -> Mapping[int, int]:
        """A mapping of every word to the one ``by`` places on. Runs that share nothing but chat
        tokens with any run come out, and share among each other what they shared before."""
        count = len(self.ids)
        return {token: self.ids[(place + by) % count] for place, token in enumerate(self.ids)}

    def check(self, encode: Callable[[str], Sequence[int]]) -> None:
        """Raise unless ``encode`` (text to ids, nothing added) gives the ids of this vocabulary.

        Raises:
            VocabularyError: names the first word that comes out otherwise.
        """
        text = "".join(f" {word}" for word in self.words)
        found = list(encode(text))
        if found == list(self.ids):
            return
        for (word, token), got in zip(self.words.items(), found, strict=False):
            if token != got:
                raise VocabularyError(
                    f"' {word}' is token {got} here; the workloads are made for {self.model}: {token}"
                )
        raise VocabularyError(
            f"{len(self.ids)} words gave {len(found)} tokens; the workloads are made for {self.model}"
        )


def load_vocabulary() -> Vocabulary:
    """The vocabulary of the workloads."""
    file = msgspec.json.decode(_WORDS.read_bytes(), type=_File)
    return Vocabulary(
        model=file.model,
        system_open=file.system_open,
        system_to_user=file.system_to_user,
        close=file.close,
        labels=(file.labels["Yes"], file.labels["No"]),
        words=file.words,
    )
