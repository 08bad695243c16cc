"""Radix tree from token ids to the slots that hold their keys and values."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from engine.records import TokenIds
from engine.row_order import common_prefix, no_tokens

NO_OWNER = -1

_DEAD_ENTRIES = 64  # that the eviction order may hold whatever its length

_born, _start, _end = attrgetter("born"), attrgetter("start"), attrgetter("end")


@dataclass(frozen=True, slots=True)
class Segment:
    """Where the KV of a run of tokens lies: ``length`` slots from ``offset`` along the blocks.

    The first token is in slot ``offset`` of ``block_ids[0]``; blocks are full in between.
    """

    block_ids: tuple[int, ...]
    offset: int
    length: int

    def part(self, start: int, stop: int, block_size: int) -> Segment:
        """The segment of the tokens ``[start, stop)`` of this run."""
        low = self.offset + start
        first, last = low // block_size, (self.offset + stop - 1) // block_size
        return Segment(self.block_ids[first : last + 1], low - first * block_size, stop - start)

    def end_offset(self, block_size: int) -> int:
        """Slots used in the last block, counted from its start: 1 to ``block_size``."""
        return (self.offset + self.length - 1) % block_size + 1


class Node:
    """A run of tokens that is in the cache, with everything before it.

    ``start`` is the position of its first token; ``pins`` counts those who need its end, and the
    children that have pins; ``spare`` says that nobody but its owner wants it kept, nor what is
    below. When a node is split, the object keeps the lower part, so that a reference to a node
    stays a reference to the end of what it stood for. ``born`` is what the tree's clock said when
    it was inserted: no later than that of any node below it. ``last_use`` leaves out uses of what
    is below it, until that is removed.
    """

    __slots__ = (
        "born",
        "children",
        "dead",
        "last_use",
        "owner",
        "parent",
        "pins",
        "queued",
        "segment",
        "spare",
        "start",
        "tokens",
    )

    def __init__(self, tokens: TokenIds, segment: Segment, start: int, parent: Node | None, owner: int) -> None:
        self.tokens = tokens
        self.segment = segment
        self.start = start
        self.parent = parent
        self.owner = owner
        self.children: dict[int, Node] = {}
        self.born = 0
        self.pins = 0
        self.last_use = 0
        self.spare = False
        self.queued = False
        self.dead = False

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> list[Node]:
        """Nodes from below the root down to this one."""
        nodes = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(slots=True)
class Match:
    """How far a row is in the tree: its nodes from the top, the last one perhaps in part.

    Valid until the tree is next changed, unless its last node is pinned.
    """

    root: Node
    nodes: list[Node] = field(default_factory=list)
    depth: int = 0

    @property
    def last(self) -> Node:
        """The deepest node that is touched; the root when nothing matched."""
        return self.nodes[-1] if self.nodes else self.root

    def known_at(self, clock: int) -> int:
        """How much of it was in the tree when the tree's clock said ``clock``."""
        count = bisect_right(self.nodes, clock, key=_born)
        return min(self.depth, self.nodes[count - 1].end) if count else 0

    def between(self, low: int, high: int) -> list[Node]:
        """The nodes that hold some of the positions ``[low, high)``."""
        if low >= high:
            return []
        return self.nodes[bisect_right(self.nodes, low, key=_end) : bisect_left(self.nodes, high, key=_start)]


class PrefixTree:
    """One radix tree per namespace over token ids; edges end at any token.

    The tree counts tokens and pins and knows the order of eviction; it does not own blocks.
    ``clock`` counts insertions and uses.
    Invariant: ``cached_tokens`` is the sum of all node lengths, ``pinned`` the nodes with
    pins; siblings differ in their first token; no node but a root is empty.
    Not thread-safe: the engine thread owns it.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._roots: dict[str, Node] = {}
        self._namespaces: dict[Node, str] = {}  # of every root
        self._childless: set[Node] = set()  # roots that had no children when last looked at
        self._leaves: list[tuple[int, int, Node]] = []  # heap: last use, tie break, node
        self._num_dead = 0  # of them, removed from the tree
        self._pushes = 0
        self.clock = 0
        self.num_nodes = 0
        self.cached_tokens = 0
        self.pinned: set[Node] = set()

    def root(self, namespace: str) -> Node:
        """The root of ``namespace``, made when first asked for."""
        root = self._roots.get(namespace)
        if root is None:
            empty = Segment((), 0, 0)
            root = Node(no_tokens(), empty, 0, None, NO_OWNER)
            self._roots[namespace] = root
            self._namespaces[root] = namespace
            self._childless.add(root)
        return root

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def match(self, namespace: str, tokens: TokenIds, *, after: Match | None = None, common: int = 0) -> Match:
        """Find the longest prefix of ``tokens`` in the tree.

        Args:
            after: The match of another row of the same namespace, made since the tree last
                changed, whose first ``common`` tokens are those of this row. The walk
                resumes there, so that sorted rows cost their unique tokens only.
        """
        match = Match(self.root(namespace))
        if after is not None:
            # beyond `after.depth` the rows may agree with each other, but not with the last node
            reached = min(common, after.depth)
            match.nodes = after.nodes[: bisect_right(after.nodes, reached, key=_end)]
            match.depth = match.nodes[-1].end if match.nodes else 0
        node = match.last
        while match.depth < len(tokens):
            child = node.children.get(int(tokens[match.depth]))
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens[match.depth :])
            match.nodes.append(child)
            match.depth += shared
            if shared < len(child.tokens):
                break
            node = child
        return match

    def touch(self, match: Match) -> None:
        """Note a use: the nodes of ``match`` become the last to be evicted."""
        self.clock += 1
        match.last.last_use = self.clock

    def pin(self, node: Node) -> None:
        """Protect ``node`` and everything above it from eviction until :meth:`unpin`."""
        while node.parent is not None:
            node.pins += 1
            if node.pins > 1:
                return
            self.pinned.add(node)
            node = node.parent

    def unpin(self, node: Node) -> None:
        """Undo one :meth:`pin` of the same node, however often it was split since."""
        while node.parent is not None:
            assert node.pins > 0, "unpinned more often than pinned"
            node.pins -= 1
            if node.pins:
                return
            self.pinned.discard(node)
            self._offer(node)
            node = node.parent

    def insert(self, parent: Node, tokens: TokenIds, segment: Segment, owner: int) -> Node:
        """Hang a new leaf under ``parent``, which must end where ``tokens`` begin.

        Raises:
            ValueError: a child begins with the same token; it should have been matched.
        """
        first = int(tokens[0])
        if first in parent.children:
            raise ValueError(f"position {parent.end} already has a child that begins with token {first}")
        node = Node(tokens, segment, parent.end, parent, owner)
        self.clock += 1
        node.born = node.last_use = self.clock
        parent.children[first] = node
        self.num_nodes += 1
        self.cached_tokens += len(tokens)
        self._offer(node)
        return node

    def holding(self, node: Node, position: int) -> Node:
        """The node on the path to ``node`` that holds the token before ``position``.

        Args:
            position: Not beyond the end of ``node``; 0 gives the root.
        """
        while node.parent is not None and node.start >= position:
            node = node.parent
        return node

    def split(self, node: Node, length: int) -> Node:
        """Cut the first ``length`` tokens of ``node`` into a node of their own above it.

        Copies nothing. If the cut is inside a block, both nodes name that block, and the
        caller sees to its count of holders.
        """
        parent = node.parent
        assert parent is not None and 0 < length < len(node.tokens), "a split is inside a node"
        upper = Node(
            node.tokens[:length], node.segment.part(0, length, self._block_size), node.start, parent, node.owner
        )
        upper.born, upper.last_use, upper.spare = node.born, node.last_use, node.spare
        upper.pins = 1 if node.pins else 0
        parent.children[int(node.tokens[0])] = upper
        node.segment = node.segment.part(length, len(node.tokens), self._block_size)
        node.tokens = node.tokens[length:]
        node.start += length
        node.parent = upper
        upper.children[int(node.tokens[0])] = node
        self.num_nodes += 1
        if upper.pins:
            self.pinned.add(upper)
        return upper

    def coldest_leaf(self) -> Node | None:
        """The least recently used leaf without a pin, or None if there is none."""
        while self._leaves:
            last_use, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if node.dead:
                self._num_dead -= 1
                continue
            if node.children or node.pins:
                continue  # offered again when it becomes an unpinned leaf
            if last_use != node.last_use:
                self._offer(node)
                continue
            self._offer(node)
            return node
        return None

    def remove(self, node: Node) -> None:
        """Take an unpinned leaf out of the tree."""
        assert node.parent is not None and not node.children and node.pins == 0, "only unpinned leaves are removed"
        parent = node.parent
        del parent.children[int(node.tokens[0])]
        node.dead = True
        self.num_nodes -= 1
        self.cached_tokens -= len(node.tokens)
        parent.last_use = max(parent.last_use, node.last_use)
        if node.queued:
            self._num_dead += 1
            self._forget_dead_entries()
        if parent.parent is not None:
            self._offer(parent)
        elif not parent.children:
            self._childless.add(parent)

    def forget_empty_namespaces(self) -> None:
        """Drop the roots that have no children; a match in such a namespace is no longer valid."""
        for root in self._childless:
            if not root.children:
                del self._roots[self._namespaces.pop(root)]
        self._childless.clear()

    def _forget_dead_entries(self) -> None:
        """Take removed nodes out of the eviction order once they are the most of it.

        A node that is removed otherwise than by eviction stands in it still, and would for as long
        as there is room.
        """
        if self._num_dead > max(_DEAD_ENTRIES, len(self._leaves) // 2):
            self._leaves = [entry for entry in self._leaves if not entry[2].dead]
            heapq.heapify(self._leaves)
            self._num_dead = 0

    def _offer(self, node: Node) -> None:
        """Put an unpinned leaf into the eviction order, once."""
        if node.queued or node.dead or node.children or node.pins:
            return
        node.queued = True
        self._pushes += 1
        heapq.heappush(self._leaves, (node.last_use, self._pushes, node))
