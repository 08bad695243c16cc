"""The vocabulary in the metadata of a GGUF file: what every kind of tokenizer has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Tokenizer

from engine import CheckpointError


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """Texts and types of all tokens; a token's number is its place."""

    tokens: list[str]
    types: list[int]

    def usable(self) -> dict[str, int]:
        """Numbers of all tokens that may occur, by text."""
        return {token: number for number, token in enumerate(self.tokens) if self.types[number] != TokenType.UNUSED}

    def add_whole_tokens(self, tokenizer: Tokenizer) -> None:
        """Make control tokens special added tokens, and user-defined ones added tokens that are not special."""
        for kind, special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
            tokenizer.add_tokens(
                [
                    AddedToken(token, special=special, normalized=False)
                    for number, token in enumerate(self.tokens)
                    if self.types[number] == kind
                ]
            )


def read_vocabulary(metadata: Mapping[str, object], source: str) -> GgufVocabulary:
    """The vocabulary of a file.

    Raises:
        CheckpointError: a field is missing, or the two have different lengths.
    """
    tokens, types = read_texts(metadata, "tokens", source), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        got = f"{len(types)} entries" if isinstance(types, list) else "missing"
        raise CheckpointError(
            f"{source}: tokenizer.ggml.token_type is {got}; one for each of {len(tokens)} tokens is needed"
        )
    return GgufVocabulary(tokens=tokens, types=types)


def read_texts(metadata: Mapping[str, object], field: str, source: str) -> list[str]:
    """A list of texts below ``tokenizer.ggml``.

    Raises:
        CheckpointError: it is missing or something else.
    """
    values = metadata.get(f"tokenizer.ggml.{field}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{source}: tokenizer.ggml.{field} is missing or no list of texts")
    return values
