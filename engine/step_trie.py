"""Merges the rows of a step with each other and with the cache, and lays out what is new.

Rows come in sorted order (:mod:`engine.row_order`), so the trie is built with one path in
hand. Laid out depth first, the new positions below any node are one range of the packed
axis; "who attends to this node" is that range and never a mask (DESIGN 2.1, 2.2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.prefix_tree import Match
from engine.records import TokenIds
from engine.sequence import RowState, TaskState

Interval = tuple[int, int]


class PathClaims:
    """Which positions of the current path this step computes, while rows arrive in sorted order.

    A position is claimed by the first row that needs it; later rows of the same path share
    it. ``overlap`` is how much of the path in hand the next row has in common with it.
    """

    def __init__(self) -> None:
        self._claimed: list[Interval] = []  # disjoint, ascending
        self.overlap = 0

    @property
    def covered(self) -> int:
        """Where what is claimed of the path that the next row shares ends; 0 if nothing of it is."""
        return max((min(high, self.overlap) for low, high in self._claimed if low < self.overlap), default=0)

    def approach(self, common: int) -> None:
        """Note that the next row shares ``common`` tokens with the row before it."""
        self.overlap = min(self.overlap, common)

    def missing(self, start: int, end: int) -> list[Interval]:
        """The positions of ``[start, end)`` of the next row that nobody has claimed."""
        gaps = []
        for low, high in self._claimed:
            high = min(high, self.overlap)  # noqa: PLW2901  what lies beyond is another path
            if low >= min(high, end):
                break
            if start < low:
                gaps.append((start, low))
            start = max(start, high)
        if start < end:
            gaps.append((start, end))
        return gaps

    def claim(self, start: int, end: int) -> list[Interval]:
        """Take what is missing of ``[start, end)`` for the next row and return it."""
        taken = self.missing(start, end)
        self.take(taken, end)
        return taken

    def take(self, missing: list[Interval], end: int) -> None:
        """Take ``missing`` for the next row, which ends at ``end``."""
        if end > self.overlap:  # the row leaves the path in hand: its own path replaces it
            self._claimed = [(low, min(high, self.overlap)) for low, high in self._claimed if low < self.overlap]
            self.overlap = end
        if missing:
            self._claimed = _union(self._claimed, missing)


def _union(left: list[Interval], right: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for low, high in sorted(left + right):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


@dataclass(slots=True, eq=False)
class StepRow:
    """One row's part in a step.

    Args:
        end: Positions ``[0, end)`` of the row are known after the step; all of it, or a chunk.
        keep: Positions ``[0, keep)`` stay in the cache.
        wanted: Positions ``[0, wanted)`` stay after the task has ended, if they are kept at all.
        match: How far the row was in the tree when the step was made.
        fresh_from: Positions from here to ``end`` are computed in this step, for this row or another.
    """

    task: TaskState
    state: RowState
    end: int
    keep: int
    match: Match
    fresh_from: int = field(init=False)
    wanted: int = field(init=False)

    def __post_init__(self) -> None:
        self.fresh_from = self.state.fresh_from(self.match)
        self.wanted = min(self.end, self.state.row.keep_tokens)

    @property
    def tokens(self) -> TokenIds:
        return self.state.row.tokens


@dataclass(slots=True, eq=False)
class TrieNode:
    """Positions ``[low, high)`` that the rows below it have in common.

    ``[low, fresh_low)`` is in the cache; ``[fresh_low, high)`` is computed and stands at
    ``packed`` onwards on the packed axis. The new positions of the node and all below it are
    ``[packed, packed_end)``. Nodes name their parents and not the other way round, so a step
    and what it holds go with the last reference and not when garbage is next looked for.
    """

    low: int
    high: int
    parent: TrieNode | None
    row: StepRow  # any row that passes through; its tokens and match hold for [low, high)
    fresh_low: int
    keep: int = 0
    wanted: int = 0
    packed: int = 0
    packed_end: int = 0

    @property
    def num_fresh(self) -> int:
        return self.high - self.fresh_low


class StepTrie:
    """The trie of the rows of one step.

    Attributes:
        nodes: Depth first, parents before children.
        num_fresh: Positions to compute: the packed axis is ``[0, num_fresh)``.
        ends: For each row, the node in which it ends.
    """

    def __init__(self, rows: Sequence[StepRow], common: Sequence[int]) -> None:
        """Build and lay out.

        Args:
            rows: Sorted by namespace, then by tokens.
            common: Tokens that each row shares with the one before it; 0 across namespaces.
        """
        self.nodes: list[TrieNode] = []
        self.ends: list[TrieNode] = []
        path: list[int] = []  # of the row in hand: places in `nodes`
        overlap = 0
        for row, shared in zip(rows, common, strict=True):
            overlap = min(overlap, shared)
            if row.end > overlap:
                self._cut(path, overlap)
                self._extend(path, row)
                self.ends.append(self.nodes[-1])
                overlap = row.end
            else:
                self.ends.append(self._node_ending_at(path, row.end))
        for row, node in zip(rows, self.ends, strict=True):
            node.fresh_low = min(node.fresh_low, row.fresh_from)
            node.keep = max(node.keep, row.keep)
            node.wanted = max(node.wanted, row.wanted)
        self.num_fresh = self._lay_out()

    def packed_places(self, end: TrieNode, low: int, high: int) -> list[int]:
        """Where the positions ``[low, high)`` of a row that ends in ``end`` stand on the packed axis."""
        places: list[int] = []
        node: TrieNode | None = end
        while node is not None and node.high > low:
            first = max(low, node.low)
            assert first >= node.fresh_low, "a position that is read is computed"
            stop = min(high, node.high)
            places[:0] = range(node.packed + first - node.fresh_low, node.packed + stop - node.fresh_low)
            node = node.parent
        return places

    def _cut(self, path: list[int], depth: int) -> None:
        """Shorten the path to ``depth``, splitting the node that reaches across it."""
        while path and self.nodes[path[-1]].low >= depth:
            path.pop()
        if path and self.nodes[path[-1]].high > depth:
            self._split(path, len(path) - 1, depth)
            path.pop()

    def _extend(self, path: list[int], row: StepRow) -> None:
        parent = self.nodes[path[-1]] if path else None
        path.append(len(self.nodes))
        self.nodes.append(TrieNode(parent.high if parent else 0, row.end, parent, row, row.end))

    def _node_ending_at(self, path: list[int], depth: int) -> TrieNode:
        level = bisect_left(path, depth, key=lambda place: self.nodes[place].high)
        node = self.nodes[path[level]]
        return node if node.high == depth else self._split(path, level, depth)

    def _split(self, path: list[int], level: int, depth: int) -> TrieNode:
        """Cut a node of the path at ``depth``; the object keeps the lower part, so ``ends`` stay true."""
        place = path[level]
        node = self.nodes[place]
        upper = TrieNode(node.low, depth, node.parent, node.row, depth)
        self.nodes.insert(place, upper)
        node.low, node.parent = depth, upper
        path[level:] = [place, *(below + 1 for below in path[level:])]
        return upper

    def _lay_out(self) -> int:
        """Carry needs up from the leaves, then give every node its place; returns how many positions are new."""
        for node in reversed(self.nodes):
            parent = node.parent
            if parent is not None:
                parent.fresh_low = min(parent.fresh_low, node.fresh_low)
                parent.keep = max(parent.keep, node.keep)
                parent.wanted = max(parent.wanted, node.wanted)
            node.fresh_low = min(max(node.fresh_low, node.low), node.high)
            node.keep = min(node.keep, node.high)
        num_fresh = 0
        for node in self.nodes:
            node.packed = num_fresh
            num_fresh += node.num_fresh
            node.packed_end = num_fresh
        for node in reversed(self.nodes):
            if node.parent is not None:
                node.parent.packed_end = max(node.parent.packed_end, node.packed_end)
        return num_fresh
