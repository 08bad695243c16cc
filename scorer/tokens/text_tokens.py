"""Text of requests to token ids, with a memory: text that is warm is not tokenised again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.pre_tokenizers import Metaspace

from engine import TokenIds

Controls: TypeAlias = frozenset[str] | None
"""Added tokens that are not read in a text, beside the special ones; None: everything is read."""


class TextPiece(NamedTuple):
    """A text that is tokenised alone. A plain tuple, because it is a key many times over.

    Args:
        slot_at: Character at which the slot starts that a caller wants to find again.
        starts_text: Whether nothing but BOS precedes it. Some tokenizers treat the start of
            a text in a way of its own.
    """

    text: str
    slot_at: int
    starts_text: bool


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpans:
    """For each token, the characters ``[start, end)`` of the text that it came from."""

    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    def covering(self, start: int, end: int) -> tuple[int, int]:
        """The tokens ``[first, last)`` that cover any of the characters ``[start, end)``."""
        first = int(np.count_nonzero(self.ends <= start))
        last = int(np.count_nonzero(self.starts < end))
        return first, max(first, last)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedText:
    """Read-only ids of a piece.

    Args:
        lead_tokens: How many tokens lie before ``slot_at`` and do not reach into the slot.
        spans: Only where they were asked for; they cost a fifth of tokenising.
    """

    ids: TokenIds
    lead_tokens: int
    spans: TokenSpans | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoStats:
    """Lookups of distinct pieces since the start, and the tokens remembered now."""

    hits: int
    misses: int
    tokens_held: int


class TextMemo:
    """Remembers the ids of texts of one tokenizer, least recently used first to go.

    Safe to use from any thread. Serves several encoders of the same tokenizer.

    Args:
        max_tokens: Most tokens remembered at one time. A longer text is not remembered.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}; it must not be negative")
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[Controls, TextPiece], EncodedText] = OrderedDict()
        self._tokens_held = 0
        self._hits = 0
        self._misses = 0

    def stats(self) -> MemoStats:
        with self._lock:
            return MemoStats(hits=self._hits, misses=self._misses, tokens_held=self._tokens_held)

    def look_up(
        self, controls: Controls, pieces: Iterable[TextPiece], *, spans: bool
    ) -> tuple[dict[TextPiece, EncodedText], list[TextPiece]]:
        """What is known of ``pieces``, and those that have to be tokenised.

        Args:
            controls: What the encoder does not read in text; part of the key.
            spans: An entry without spans counts as not known.
        """
        found: dict[TextPiece, EncodedText] = {}
        missing: list[TextPiece] = []
        with self._lock:
            for piece in pieces:
                key = (controls, piece)
                entry = self._entries.get(key)
                if entry is None or (spans and entry.spans is None):
                    missing.append(piece)
                else:
                    found[piece] = entry
                    self._entries.move_to_end(key)
            self._hits += len(found)
            self._misses += len(missing)
        return found, missing

    def remember(self, controls: Controls, encoded: Mapping[TextPiece, EncodedText]) -> None:
        """Take in new texts and let go of the oldest beyond the bound."""
        with self._lock:
            for piece, entry in encoded.items():
                self._forget((controls, piece))
                # an empty text has no tokens, but remembering it is not free
                if 0 < len(entry.ids) <= self._max_tokens:
                    self._entries[controls, piece] = entry
                    self._tokens_held += len(entry.ids)
            while self._tokens_held > self._max_tokens:
                self._tokens_held -= len(self._entries.popitem(last=False)[1].ids)

    def _forget(self, key: tuple[Controls, TextPiece]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._tokens_held -= len(entry.ids)


class TextEncoder:
    """Tokenises texts; by default nothing in them is read as a control token. Safe to use from any thread.

    It works on tokenizers of its own that share the vocabulary with the given one and are
    never changed after they were made.

    Args:
        controls: Added tokens that text must not produce, beside those marked as special. None:
            text is the caller's own prompt, and all control tokens are read in it.
    """

    def __init__(self, tokenizer: Tokenizer, controls: Collection[str] | None, memo: TextMemo) -> None:
        self._controls: Controls = None if controls is None else frozenset(controls)
        self._memo = memo
        self._at_start = _copy(tokenizer, self._controls)
        self._inside = self._at_start
        spaces = tokenizer.pre_tokenizer
        if isinstance(spaces, Metaspace) and spaces.prepend_scheme == "first":
            # "first" means the first text of a prompt, and every piece is first in its own call
            self._inside = _copy(tokenizer, self._controls)
            self._inside.pre_tokenizer = Metaspace(spaces.replacement, prepend_scheme="never", split=spaces.split)

    def encode(self, pieces: Collection[TextPiece], *, spans: bool = False) -> dict[TextPiece, EncodedText]:
        """The ids of every piece; only those that are not remembered are tokenised.

        Args:
            spans: Give the spans of tokens too.
        """
        distinct = dict.fromkeys(pieces)
        found, missing = self._memo.look_up(self._controls, distinct, spans=spans)
        if missing:
            fresh: dict[TextPiece, EncodedText] = {}
            for tokenizer, starts_text in ((self._at_start, True), (self._inside, False)):
                batch = [piece for piece in missing if piece.starts_text == starts_text]
                if not batch:
                    continue
                encodings = tokenizer.encode_batch([piece.text for piece in batch], add_special_tokens=False)
                for piece, encoding in zip(batch, encodings, strict=True):
                    fresh[piece] = _read(piece, encoding, spans=spans)
            self._memo.remember(self._controls, fresh)
            found.update(fresh)
        return found


def read_only_ids(ids: Iterable[int]) -> TokenIds:
    """The ids as an array that cannot be written to."""
    array = np.fromiter(ids, dtype=np.int32)
    array.flags.writeable = False
    return array


def _read(piece: TextPiece, encoding: Encoding, *, spans: bool) -> EncodedText:
    ids = read_only_ids(encoding.ids)
    token_spans = _token_spans(encoding) if spans else None
    if piece.slot_at == 0:
        return EncodedText(ids, 0, token_spans)
    # the first token that covers the slot's first character; none if the slot is empty there
    lead_tokens = encoding.char_to_token(piece.slot_at)
    if lead_tokens is None:
        known = token_spans or _token_spans(encoding)
        lead_tokens, _ = known.covering(piece.slot_at, piece.slot_at)
    return EncodedText(ids, lead_tokens, token_spans)


def _token_spans(encoding: Encoding) -> TokenSpans:
    flat = np.fromiter((bound for span in encoding.offsets for bound in span), dtype=np.int32)
    flat.flags.writeable = False
    return TokenSpans(flat[0::2], flat[1::2])


def _copy(tokenizer: Tokenizer, controls: Controls) -> Tokenizer:
    """A tokenizer with the same vocabulary (shared, not copied) that reads no control token, or all of them."""
    copy = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        copy.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        copy.pre_tokenizer = tokenizer.pre_tokenizer

    def is_control(token: AddedToken) -> bool:
        return token.special or (controls is not None and token.content in controls)

    added = tokenizer.get_added_tokens_decoder()
    in_order = [added[number] for number in sorted(added)]  # ids are given in the order of adding
    # in runs, because each call makes the search for added tokens anew, and some models have thousands
    for control, run in groupby(in_order, key=is_control):
        (copy.add_special_tokens if control else copy.add_tokens)(list(run))
    for number, token in added.items():
        assert copy.token_to_id(token.content) == number, "the library numbers added tokens in the order of adding"
    copy.encode_special_tokens = controls is not None
    return copy
