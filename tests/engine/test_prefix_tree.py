from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix_tree import Match, Node, PrefixTree, Segment
from engine.records import TokenIds
from engine.row_order import common_prefix, order_rows

BLOCK_SIZE = 4


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def somewhere(length: int) -> Segment:
    """Slots for a node of a test that does not look at them."""
    return Segment(tuple(range(-(-length // BLOCK_SIZE))), 0, length)


def insert(tree: PrefixTree, tokens: Sequence[int], namespace: str = "a") -> Node:
    """Add what is missing of ``tokens``, splitting where it leaves the tree."""
    match = tree.match(namespace, ids(*tokens))
    if match.depth == len(tokens) and match.last.end == match.depth:
        return match.last
    parent = match.last
    if match.depth < parent.end:
        parent = tree.split(parent, match.depth - parent.start)
    if match.depth == len(tokens):
        return parent
    rest = ids(*tokens[match.depth :])
    return tree.insert(parent, rest, somewhere(len(rest)), 0)


def depth_by_comparing(stored: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
    return max((common_prefix(ids(*one), ids(*tokens)) for one in stored if one), default=0)


def tokens_before(match: Match) -> list[int]:
    return [token for node in match.nodes for token in node.tokens.tolist()][: match.depth]


rows = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


class TestMatch:
    @settings(deadline=None, max_examples=200)
    @given(stored=rows, asked=rows)
    def test_finds_the_longest_stored_prefix(self, stored: list[list[int]], asked: list[list[int]]) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        for row in stored:
            insert(tree, row)

        for row in asked:
            match = tree.match("a", ids(*row))

            assert match.depth == depth_by_comparing(stored, row)
            assert tokens_before(match) == row[: match.depth]
            assert all(node.end <= match.depth for node in match.nodes[:-1])

    @settings(deadline=None, max_examples=400)
    @given(stored=rows, asked=rows)
    def test_resumed_after_a_neighbour_equals_a_match_from_the_root(
        self, stored: list[list[int]], asked: list[list[int]]
    ) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        for row in stored:
            insert(tree, row)
        tokens = [ids(*row) for row in asked]
        order = order_rows(tokens)

        resumed: Match | None = None
        for index, common in zip(order.order, order.common, strict=True):
            resumed = tree.match("a", tokens[index], after=resumed, common=common)
            whole = tree.match("a", tokens[index])

            assert (resumed.depth, resumed.nodes) == (whole.depth, whole.nodes)

    def test_resumed_after_a_row_that_left_a_node_half_way_does_not_enter_that_node(self) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        insert(tree, [1, 2, 3, 9, 9])
        insert(tree, [1, 2, 3, 9, 9, 7, 7])
        first = tree.match("a", ids(1, 2, 3, 4, 5, 6))

        second = tree.match("a", ids(1, 2, 3, 4, 5, 7, 7), after=first, common=5)

        assert (first.depth, second.depth) == (3, 3)

    def test_b022_namespaces_share_nothing(self) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        insert(tree, [1, 2, 3], "a")

        assert tree.match("b", ids(1, 2, 3)).depth == 0
        assert tree.match("a", ids(1, 2, 3)).depth == 3

    def test_b021_compares_tokens_and_not_a_hash_of_them(self) -> None:
        """Both are 3181000 under multiply-by-31 hashing."""
        tree = PrefixTree(BLOCK_SIZE)
        insert(tree, [100, 200, 300, 400])

        assert tree.match("a", ids(100, 201, 269, 400)).depth == 1

    @pytest.mark.parametrize("length", [1, 15, 16])
    def test_b019_a_row_shorter_than_a_block_misses_cleanly_and_then_hits(self, length: int) -> None:
        tree = PrefixTree(16)
        row = list(range(length))

        assert tree.match("a", ids(*row)).depth == 0
        assert tree.match("a", ids(*row)).nodes == []
        insert(tree, row)
        assert tree.match("a", ids(*row)).depth == length
        assert all(len(node.tokens) for node in tree.nodes())


class TestSplit:
    @pytest.mark.parametrize("cut", range(1, 10))
    @pytest.mark.parametrize("offset", range(BLOCK_SIZE))
    def test_every_token_stays_in_its_slot(self, cut: int, offset: int) -> None:
        segment = Segment((7, 3, 9, 5), offset, 10)
        slots = slots_of(segment)
        tree = PrefixTree(BLOCK_SIZE)
        node = tree.insert(tree.root("a"), ids(*range(10)), segment, 0)

        upper = tree.split(node, cut)

        assert slots_of(upper.segment) + slots_of(node.segment) == slots
        assert upper.tokens.tolist() + node.tokens.tolist() == list(range(10))
        assert (upper.start, upper.end, node.start, node.end) == (0, cut, cut, 10)
        assert node.segment.end_offset(BLOCK_SIZE) == slots[-1] % BLOCK_SIZE + 1

    def test_a_reference_stays_a_reference_to_the_end(self) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        leaf = insert(tree, [1, 2, 3, 4])
        tree.pin(leaf)

        upper = insert(tree, [1, 2])
        other = insert(tree, [1, 2, 9])

        assert leaf.path() == [upper, leaf]
        assert other.path() == [upper, other]
        assert (upper.pins, leaf.pins, other.pins) == (1, 1, 0)
        tree.unpin(leaf)
        assert (upper.pins, leaf.pins) == (0, 0)
        assert not tree.pinned

    def test_the_end_of_any_prefix_is_found_from_below(self) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        insert(tree, [1, 2])
        insert(tree, [1, 2, 3, 4, 5])
        leaf = insert(tree, [1, 2, 3, 4, 5, 6])

        found = [tree.holding(leaf, position) for position in range(7)]

        assert [node.end for node in found] == [0, 2, 2, 5, 5, 5, 6]
        assert found[0] is tree.root("a")


class TestEvictionOrder:
    def test_b017_a_pinned_leaf_is_not_offered(self) -> None:
        """The node that is pinned is protected itself, not only what is above it."""
        tree = PrefixTree(1)
        leaf = insert(tree, list(range(1, 33)))
        tree.pin(leaf)

        assert tree.coldest_leaf() is None
        assert sum(len(node.tokens) for node in tree.pinned) == 32

        tree.unpin(leaf)
        assert not tree.pinned
        assert tree.coldest_leaf() is leaf

    def test_b018_pinned_and_evictable_tokens_add_up_through_splits(self) -> None:
        tree = PrefixTree(1)

        def evictable_and_pinned() -> tuple[int, int]:
            pinned = sum(len(node.tokens) for node in tree.pinned)
            return tree.cached_tokens - pinned, pinned

        insert(tree, [1, 2, 3, 4])
        assert evictable_and_pinned() == (4, 0)
        second = insert(tree, [1, 2, 9])
        assert evictable_and_pinned() == (5, 0)
        tree.pin(second)
        assert evictable_and_pinned() == (2, 3)
        tree.unpin(second)
        assert evictable_and_pinned() == (5, 0)

    @pytest.mark.parametrize("seed", range(30))
    def test_the_least_recently_used_unpinned_leaf_comes_first(self, seed: int) -> None:
        rng = random.Random(seed)
        tree = PrefixTree(BLOCK_SIZE)
        clock = 0
        used: dict[Node, int] = {}
        pinned: list[Node] = []
        for _ in range(200):
            row = [rng.randrange(3) for _ in range(rng.randrange(1, 8))]
            match rng.choice(["insert", "touch", "pin", "unpin", "remove"]):
                case "insert":
                    before = set(tree.nodes())
                    insert(tree, row)
                    clock += 1
                    # the upper half of a split was last used when its lower half was
                    for node in set(tree.nodes()) - before:
                        if halves := [used[half] for half in node.children.values() if half in before]:
                            used[node] = halves[0]
                    # and a leaf that is new is a use of all that it hangs on
                    for leaf in set(tree.nodes()) - before - used.keys():
                        used.update(dict.fromkeys(leaf.path(), clock))
                case "touch":
                    clock += 1
                    touched = tree.match("a", ids(*row))
                    tree.touch(touched)
                    used.update(dict.fromkeys(touched.nodes, clock))
                case "pin":
                    node = tree.match("a", ids(*row)).last
                    tree.pin(node)
                    pinned.append(node)
                case "unpin" if pinned:
                    tree.unpin(pinned.pop(rng.randrange(len(pinned))))
                case "remove":
                    protected = {node for end in pinned for node in end.path()}
                    free = [node for node in tree.nodes() if not node.children and node not in protected]
                    coldest = tree.coldest_leaf()
                    assert (coldest is None) == (not free)
                    if coldest is not None:
                        assert coldest in free
                        assert used[coldest] == min(used[node] for node in free)
                        tree.remove(coldest)

            assert tree.num_nodes == len(list(tree.nodes()))
            assert tree.cached_tokens == sum(len(node.tokens) for node in tree.nodes())
            assert tree.pinned == {node for node in tree.nodes() if node.pins}

    def test_a_parent_is_offered_once_its_last_child_is_gone(self) -> None:
        tree = PrefixTree(BLOCK_SIZE)
        parent = insert(tree, [1, 2])
        first, second = insert(tree, [1, 2, 3]), insert(tree, [1, 2, 4])

        order = []
        while (leaf := tree.coldest_leaf()) is not None:
            order.append(leaf)
            tree.remove(leaf)

        assert order == [first, second, parent]
        assert tree.cached_tokens == tree.num_nodes == 0


def test_what_was_removed_does_not_stay_in_the_order_of_eviction() -> None:
    """As with tokens that a generation says: they leave the tree, and nothing ever has to make room."""
    tree = PrefixTree(BLOCK_SIZE)
    kept = insert(tree, [1, 2, 3])
    for _ in range(1000):
        tree.remove(insert(tree, [4, 5]))
        assert len(tree._leaves) < 150

    assert tree.coldest_leaf() is kept


def test_a_pin_costs_no_more_than_the_part_of_its_path_that_has_none() -> None:
    tree = PrefixTree(BLOCK_SIZE)
    chain = [insert(tree, range(stop)) for stop in range(1, 6)]

    for node in (chain[4], chain[4], chain[2]):
        tree.pin(node)
    assert [node.pins for node in chain] == [1, 1, 2, 1, 2]

    for node in (chain[4], chain[2], chain[4]):
        assert tree.pinned == set(chain)
        tree.unpin(node)
    assert [node.pins for node in chain] == [0] * 5


def test_two_children_cannot_begin_with_the_same_token() -> None:
    tree = PrefixTree(BLOCK_SIZE)
    insert(tree, [5, 6])

    with pytest.raises(ValueError, match="position 0 already has a child that begins with token 5"):
        tree.insert(tree.root("a"), ids(5, 7), somewhere(2), 0)


def slots_of(segment: Segment) -> list[int]:
    along = range(segment.offset, segment.offset + segment.length)
    return [segment.block_ids[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE for place in along]
