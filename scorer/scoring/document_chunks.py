"""Long documents in parts of at most so many tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scorer.dialects.schema import ChunkSpec, TruncationSide
from scorer.errors import InvalidValue
from scorer.scoring.prompts import PromptBuilder


def split_documents(builder: PromptBuilder, documents: Sequence[str], spec: ChunkSpec) -> list[list[str]]:
    """The parts of each document, in order; a document that is short enough is its own only part.

    Tokens are those of the document tokenised alone; a part begins at the first character of a
    token and may have a token more or less in a prompt.

    Raises:
        InvalidValue: the overlap leaves nothing new in a part.
    """
    if spec.overlap_tokens >= spec.max_tokens:
        raise InvalidValue(
            f"overlap_tokens is {spec.overlap_tokens}; it must be less than max_tokens, {spec.max_tokens}",
            field="chunking.overlap_tokens",
            value=spec.overlap_tokens,
            limit=spec.max_tokens - 1,
        )
    starts = builder.token_starts(set(documents))
    return [_split(text, starts[text], spec) for text in documents]


def cut_text(text: str, starts: npt.NDArray[np.int32], keep_tokens: int, side: TruncationSide = "right") -> str:
    """``text`` without the characters that have a token beyond ``keep_tokens``.

    Args:
        starts: Character at which each token begins.
        side: Where the text is cut: tokens are counted from the other one.
    """
    num_cut = len(starts) - keep_tokens
    if num_cut <= 0:
        return text
    if side == "right":
        return text[: int(starts[keep_tokens])]
    kept = int(np.searchsorted(starts, starts[num_cut - 1], side="right"))  # a character may have several tokens
    return text[int(starts[kept]) :] if kept < len(starts) else ""


def _split(text: str, starts: npt.NDArray[np.int32], spec: ChunkSpec) -> list[str]:
    step = spec.max_tokens - spec.overlap_tokens
    parts: list[str] = []
    for first in range(0, max(1, len(starts) - spec.overlap_tokens), step):
        begin = int(starts[first]) if first else 0
        end = int(starts[first + spec.max_tokens]) if first + spec.max_tokens < len(starts) else len(text)
        parts.append(text[begin:end])
    return parts
