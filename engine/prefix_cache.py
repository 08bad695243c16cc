"""The one door to block lifetimes: match, hold, reserve, commit, evict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.blocks import BlockAllocator
from engine.errors import OutOfCapacity
from engine.prefix_tree import Match, Node, PrefixTree, Segment
from engine.records import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Growth:
    """Tokens that a step computes and that shall stay in the cache.

    Args:
        anchor: A node on whose path (in the tree as it is) the tokens begin; held by the step.
        parent: Index of an earlier growth of the same step that ends where this one starts,
            or None if the tokens hang on the tree itself.
        start: Position of the first token.
        owner: Serial number of the task they are computed for.
        spare: They stay only until that task ends: see :meth:`PrefixCache.drop_spare`.
    """

    anchor: Node
    parent: int | None
    start: int
    tokens: TokenIds
    owner: int
    spare: bool = False


class PrefixCache:
    """A prefix tree whose nodes own slots of a block pool.

    Room for new tokens is reserved before a step and committed to the tree only after the
    step has succeeded, so that nothing half-written can be found. New tokens continue in the
    last block of what they hang on while its next slot is unused; otherwise they start a
    block. Not thread-safe: the engine thread owns it.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._blocks = BlockAllocator(num_blocks)
        self._tree = PrefixTree(block_size)
        self._fill = np.zeros(num_blocks, dtype=np.int64)  # slots in use, counted from the block's start
        self._evicted_tokens = 0

    @property
    def num_blocks(self) -> int:
        return self._blocks.num_blocks

    @property
    def num_free(self) -> int:
        return self._blocks.num_free

    @property
    def num_nodes(self) -> int:
        return self._tree.num_nodes

    @property
    def cached_tokens(self) -> int:
        return self._tree.cached_tokens

    @property
    def clock(self) -> int:
        """Says later of what is committed after it was read: see :meth:`engine.prefix_tree.Match.known_at`."""
        return self._tree.clock

    @property
    def capacity_tokens(self) -> int:
        return self._blocks.num_blocks * self.block_size

    def num_pinned(self) -> int:
        """Blocks that a held path needs."""
        return len({block for node in self._tree.pinned for block in node.segment.block_ids})

    def take_evicted_tokens(self) -> int:
        """Tokens evicted since this was last asked; spare ones do not count."""
        evicted, self._evicted_tokens = self._evicted_tokens, 0
        return evicted

    def match(self, namespace: str, tokens: TokenIds, *, after: Match | None = None, common: int = 0) -> Match:
        """See :meth:`engine.prefix_tree.PrefixTree.match`."""
        return self._tree.match(namespace, tokens, after=after, common=common)

    def touch(self, match: Match) -> None:
        """Note a use, which puts eviction off."""
        self._tree.touch(match)

    def hold(self, node: Node) -> None:
        """Protect the path to ``node`` until :meth:`let_go`."""
        self._tree.pin(node)

    def let_go(self, node: Node) -> None:
        self._tree.unpin(node)

    def reserve(self, growths: Sequence[Growth]) -> list[Segment]:
        """Find slots for the tokens of a step, evicting cold leaves as needed.

        All or nothing for the blocks of ``growths``; what was evicted stays evicted.

        Raises:
            OutOfCapacity: held paths leave too little room.
        """
        segments: list[Segment] = []
        try:
            for growth in growths:
                segments.append(self._place(growth, segments))
        except OutOfCapacity:
            self.abandon(segments)
            raise
        return segments

    def commit(self, growths: Sequence[Growth], segments: Sequence[Segment]) -> list[Node]:
        """Make the reserved tokens findable, a node for each growth; their KV must have been written."""
        nodes: list[Node] = []
        for growth, segment in zip(growths, segments, strict=True):
            parent = self._end_at(growth.anchor, growth.start) if growth.parent is None else nodes[growth.parent]
            # a copy, since a part of a row keeps all of it in memory
            node = self._tree.insert(parent, growth.tokens.copy(), segment, growth.owner)
            node.spare = growth.spare
            nodes.append(node)
        return nodes

    def keep(self, match: Match, tokens: int) -> int:
        """Let the first ``tokens`` of a match stay whoever ends; returns how many of them were spare."""
        wanted = min(tokens, match.depth)
        kept = 0
        for node in reversed(match.nodes):
            if not node.spare:
                break
            if node.start < wanted:
                upper = self._end_at(node, min(wanted, node.end))
                upper.spare = False
                kept += len(upper.tokens)
        return kept

    def drop_spare(self, node: Node) -> Node | None:
        """Drop ``node``, and what was split off it, if it is still spare.

        Returns:
            What has to be tried again, since something hangs on it or holds it.
        """
        owner = node.owner
        while node.spare and node.owner == owner:
            if not node.dead:
                if node.children or node.pins:
                    return node
                self._drop(node)
            node.spare = False
            assert node.parent is not None, "a root is never spare"
            node = node.parent
        return None

    def abandon(self, segments: Sequence[Segment]) -> None:
        """Give reserved slots back."""
        for segment in reversed(segments):
            self._free(segment)

    def distrust(self, match: Match) -> None:
        """Evict the nodes of ``match`` from the last one up, as far as nobody else hangs on them or holds them."""
        for node in reversed(match.nodes):
            if node.children or node.pins:
                return
            self._drop(node)

    def evict_all(self) -> None:
        """Drop everything that no task holds."""
        while (leaf := self._tree.coldest_leaf()) is not None:
            self._drop(leaf)

    def forget_empty_namespaces(self) -> None:
        """Drop the roots under which nothing is cached any more. Not while a step is under way."""
        self._tree.forget_empty_namespaces()

    def _place(self, growth: Growth, segments: Sequence[Segment]) -> Segment:
        length = len(growth.tokens)
        before = None
        if growth.parent is not None:
            before = segments[growth.parent]
        elif growth.start > 0:
            node = self._tree.holding(growth.anchor, growth.start)
            before = node.segment if node.end == growth.start else None
        offset = before.end_offset(self.block_size) if before else self.block_size
        if before is None or offset == self.block_size or self._fill[before.block_ids[-1]] != offset:
            blocks = self._allocate(-(-length // self.block_size))
            offset = 0
        else:
            tail = before.block_ids[-1]
            blocks = [tail, *self._allocate(-(-max(0, offset + length - self.block_size) // self.block_size))]
            self._blocks.retain([tail])
        segment = Segment(tuple(blocks), offset, length)
        self._fill[blocks[:-1]] = self.block_size
        self._fill[blocks[-1]] = segment.end_offset(self.block_size)
        return segment

    def _allocate(self, count: int) -> list[int]:
        while self._blocks.num_free < count:
            leaf = self._tree.coldest_leaf()
            if leaf is None:
                break  # let the allocator say what is missing
            self._evict(leaf, count - self._blocks.num_free)
        return self._blocks.allocate(count)

    def _evict(self, leaf: Node, wanted: int) -> None:
        """Drop ``leaf``, or only its last ``wanted`` blocks when it has more than that."""
        segment = leaf.segment
        kept = (len(segment.block_ids) - wanted) * self.block_size - segment.offset
        if kept > 0:
            self._tree.split(leaf, kept)  # at a block's edge: no block is shared
        self._drop(leaf)

    def _drop(self, leaf: Node) -> None:
        self._tree.remove(leaf)
        self._evicted_tokens += 0 if leaf.spare else len(leaf.tokens)
        self._free(leaf.segment)

    def _free(self, segment: Segment) -> None:
        first = segment.block_ids[0]
        end = self.block_size if len(segment.block_ids) > 1 else segment.end_offset(self.block_size)
        if self._fill[first] == end:
            self._fill[first] = segment.offset  # what comes before may continue here
        self._blocks.release(segment.block_ids)

    def _end_at(self, anchor: Node, position: int) -> Node:
        """The node that ends at ``position`` on the path to ``anchor``, split there if need be."""
        node = self._tree.holding(anchor, position)
        if node.end == position:
            return node
        length = position - node.start
        place = node.segment.offset + length
        if place % self.block_size:
            self._blocks.retain([node.segment.block_ids[place // self.block_size]])
        return self._tree.split(node, length)
