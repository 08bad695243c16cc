"""Puts rows side by side that share a prefix, so that a batch can be walked like a trie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.records import TokenIds


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Length of the longest common prefix of two token sequences."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def sort_key(tokens: TokenIds) -> bytes:
    """Bytes that sort as the (non-negative) token ids do: big-endian, so C compares them."""
    return tokens.astype(">i4").tobytes()


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Rows in lexicographic order: neighbours share the most.

    For ``i < j < k`` in this order the common prefix of ``i`` and ``k`` is the shorter of
    those of ``(i, j)`` and ``(j, k)``, so ``common`` between neighbours says it all.

    Args:
        order: Indices of the rows.
        common: ``common[n]`` tokens are shared by rows ``order[n - 1]`` and ``order[n]``; 0 first.
        unique_tokens: Positions of the trie of all rows.
    """

    order: tuple[int, ...]
    common: tuple[int, ...]
    unique_tokens: int


def order_rows(rows: Sequence[TokenIds]) -> RowOrder:
    """Sort rows of one namespace; cost grows with their total length."""
    keys = [sort_key(tokens) for tokens in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    common = [0] * len(rows)
    for place in range(1, len(order)):
        common[place] = common_prefix(rows[order[place - 1]], rows[order[place]])
    unique = sum(len(tokens) for tokens in rows) - sum(common)
    return RowOrder(tuple(order), tuple(common), unique)


def no_tokens() -> TokenIds:
    """An empty token sequence."""
    return np.empty(0, dtype=np.int32)
