"""Prompts that callers spell themselves: no template, special tokens are read where they are written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import TokenIds
from scorer.tokens.safe_cuts import SafeCuts
from scorer.tokens.text_tokens import TextEncoder, TextMemo, TextPiece, read_only_ids
from scorer.tokens.tokenizer_files import LoadedTokenizer


class RawTexts:
    """Gives the ids that the model's own tokenizer gives. Safe to use from any thread.

    The two parts of a prompt are called head and tail; ``head_tokens`` of a prompt lie wholly in
    its head.
    """

    def __init__(self, tokenizer: LoadedTokenizer, memo: TextMemo) -> None:
        self._encoder = TextEncoder(tokenizer.tokenizer, None, memo)
        self._cuts = SafeCuts(tokenizer.tokenizer, read_special_tokens=True)
        self._tokenizer = tokenizer.tokenizer
        self.lead_ids = read_only_ids(tokenizer.lead_ids)
        end = None if tokenizer.eos_token is None else tokenizer.tokenizer.token_to_id(tokenizer.eos_token)
        self.end_ids = frozenset(() if end is None else (end,))

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """The ids of each text, tokenised alone."""
        pieces = [_piece(text) for text in texts]
        encoded = self._encoder.encode(pieces)
        return [encoded[piece].ids for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids without special tokens; bytes that are no character become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def encode_joined(self, parts: Sequence[tuple[str, str]]) -> list[tuple[TokenIds, int]]:
        """The ids of ``head + tail`` tokenised as one text, and ``head_tokens``.

        A head is read once up to a place where a cut changes no token, however many tails it has.
        """
        cut_at = {head: self._cuts.find_last(head) for head in {head for head, _ in parts}}
        starts = [_piece(head[: cut_at[head]]) for head, _ in parts]
        ends = [
            TextPiece(head[cut_at[head] :] + tail, len(head) - cut_at[head], cut_at[head] == 0) for head, tail in parts
        ]
        encoded = self._encoder.encode({*starts, *ends})
        return [
            (np.concatenate([encoded[start].ids, encoded[end].ids]), len(encoded[start].ids) + encoded[end].lead_tokens)
            for start, end in zip(starts, ends, strict=True)
        ]


def _piece(text: str) -> TextPiece:
    return TextPiece(text, 0, True)
