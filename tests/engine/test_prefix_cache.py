from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import OutOfCapacity
from engine.prefix_cache import Growth, PrefixCache
from engine.prefix_tree import Node, Segment
from engine.records import TokenIds
from tests.helpers.paper_engine import cached_prefixes, check_cache
from tests.helpers.tries import Prefix, Tokens


def ids(tokens: Sequence[int]) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def slots_of(segment: Segment, block_size: int) -> list[int]:
    along = range(segment.offset, segment.offset + segment.length)
    return [segment.block_ids[place // block_size] * block_size + place % block_size for place in along]


def keep(cache: PrefixCache, tokens: Sequence[int], namespace: str = "a") -> Segment | None:
    """Put what is missing of ``tokens`` into the cache."""
    match = cache.match(namespace, ids(tokens))
    if match.depth == len(tokens):
        return None
    cache.hold(match.last)
    growth = Growth(anchor=match.last, parent=None, start=match.depth, tokens=ids(tokens[match.depth :]), owner=0)
    try:
        (segment,) = cache.reserve([growth])
        cache.commit([growth], [segment])
    finally:
        cache.let_go(match.last)
    return segment


def depth(cache: PrefixCache, tokens: Sequence[int], namespace: str = "a") -> int:
    return cache.match(namespace, ids(tokens)).depth


namespaces = st.sampled_from(["a", "b"])
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class CacheMachine(RuleBasedStateMachine):
    """Random use of a cache, held against a dictionary of token tuples.

    ``written`` says what was last written to each slot; ``committed`` what was made findable
    and has not been evicted.
    """

    @initialize(block_size=st.sampled_from([1, 2, 3, 4, 7]), num_blocks=st.integers(1, 14))
    def start(self, block_size: int, num_blocks: int) -> None:
        self.cache = PrefixCache(num_blocks=num_blocks, block_size=block_size)
        self.written: dict[int, Prefix] = {}
        self.committed: set[Prefix] = set()
        self.held: list[tuple[Node, Prefix]] = []

    def known(self, namespace: str, tokens: Sequence[int]) -> int:
        length = 0
        while length < len(tokens) and (namespace, tuple(tokens[: length + 1])) in self.committed:
            length += 1
        return length

    def note_evictions(self) -> None:
        left = set(cached_prefixes(self.cache))
        assert left <= self.committed
        assert self.cache.take_evicted_tokens() == len(self.committed) - len(left)
        self.committed = left

    @rule(namespace=namespaces, tokens=token_lists)
    def match(self, namespace: str, tokens: list[int]) -> None:
        assert depth(self.cache, tokens, namespace) == self.known(namespace, tokens)

    @rule(namespace=namespaces, tokens=token_lists)
    def touch(self, namespace: str, tokens: list[int]) -> None:
        self.cache.touch(self.cache.match(namespace, ids(tokens)))

    @rule(namespace=namespaces, tokens=token_lists)
    def hold(self, namespace: str, tokens: list[int]) -> None:
        match = self.cache.match(namespace, ids(tokens))
        self.cache.hold(match.last)
        self.held.append((match.last, (namespace, tuple(tokens[: match.depth]))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        node, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.let_go(node)

    @rule()
    def evict_all(self) -> None:
        self.cache.evict_all()

        self.note_evictions()
        assert self.committed == {
            prefix
            for node, (namespace, _) in self.held
            for prefix in _prefixes(namespace, [token for part in node.path() for token in part.tokens.tolist()])
        }

    @precondition(lambda self: not self.held)
    @rule()
    def forget_empty_namespaces(self) -> None:
        self.cache.forget_empty_namespaces()

        assert set(self.cache._tree._roots) == {namespace for namespace, _ in self.committed}

    @rule(namespace=namespaces, rows=st.lists(token_lists, min_size=1, max_size=4), succeeds=st.booleans())
    def step(self, namespace: str, rows: list[list[int]], *, succeeds: bool) -> None:
        matches = [self.cache.match(namespace, ids(row)) for row in rows]
        for match in matches:
            self.cache.hold(match.last)
        growths, ends = self.growths(namespace, rows)
        live = cached_prefixes(self.cache)
        num_free, num_pinned = self.cache.num_free, self.cache.num_pinned()
        most_blocks = sum(-(-len(growth.tokens) // self.cache.block_size) for growth in growths)
        try:
            segments = self.cache.reserve(growths)
        except OutOfCapacity:
            assert num_pinned + most_blocks > self.cache.num_blocks
            self.note_evictions()
        else:
            num_evicted = len(self.committed) - len(cached_prefixes(self.cache))
            self.note_evictions()
            if not num_evicted:
                self.check_places(growths, ends, segments, live, num_free)
            self.write(ends, growths, segments)
            if succeeds:
                self.cache.commit(growths, segments)
                self.committed |= {prefix for row in rows for prefix in _prefixes(namespace, row)}
            else:
                self.cache.abandon(segments)
        for match in matches:
            self.cache.let_go(match.last)

    def growths(self, namespace: str, rows: list[list[int]]) -> tuple[list[Growth], list[Prefix]]:
        """What is new in ``rows``, cut where paths part and where a row ends; and the end of each."""
        new = sorted({row for _, row in {p for row in rows for p in _prefixes(namespace, row)} - self.committed})
        stops = {tuple(row) for row in rows}
        parts: list[list[Tokens]] = []
        for tokens in new:
            before = tokens[:-1]
            branches = sum(other[:-1] == before for other in new)
            if parts and parts[-1][-1] == before and branches == 1 and before not in stops:
                parts[-1].append(tokens)
            else:
                parts.append([tokens])
        ends = [part[-1] for part in parts]
        growths = []
        for part in parts:
            before = part[0][:-1]
            row = next(row for row in rows if tuple(row[: len(part[0])]) == part[0])
            growths.append(
                Growth(
                    anchor=self.cache.match(namespace, ids(row)).last,
                    parent=ends.index(before) if before in ends else None,
                    start=len(before),
                    tokens=ids(part[-1][len(before) :]),
                    owner=0,
                )
            )
        return growths, [(namespace, end) for end in ends]

    def check_places(
        self,
        growths: list[Growth],
        ends: list[Prefix],
        segments: list[Segment],
        live: dict[Prefix, int],
        num_free: int,
    ) -> None:
        """New tokens follow the slot of what they hang on if that is the last one used of its block."""
        size = self.cache.block_size
        taken = dict(live)
        num_blocks = 0
        for growth, (namespace, end), segment in zip(growths, ends, segments, strict=True):
            slots = slots_of(segment, size)
            assert not set(slots) & set(taken.values())
            before = taken.get((namespace, end[: growth.start]))
            room = 0
            if before is not None and max(s for s in taken.values() if s // size == before // size) == before:
                room = size - 1 - before % size
            if room:
                assert before is not None
                assert slots[0] == before + 1
            else:
                assert slots[0] % size == 0
            num_blocks += -(-max(0, len(slots) - room) // size)
            stops = range(growth.start + 1, len(end) + 1)
            taken |= {(namespace, end[:stop]): slot for stop, slot in zip(stops, slots, strict=True)}
        assert num_free - self.cache.num_free == num_blocks

    def write(self, ends: list[Prefix], growths: list[Growth], segments: list[Segment]) -> None:
        live = set(cached_prefixes(self.cache).values())
        for growth, (namespace, end), segment in zip(growths, ends, segments, strict=True):
            slots = slots_of(segment, self.cache.block_size)
            assert len(slots) == len(growth.tokens)
            assert not set(slots) & live
            live |= set(slots)
            for stop, slot in zip(range(growth.start + 1, len(end) + 1), slots, strict=True):
                self.written[slot] = (namespace, end[:stop])

    @invariant()
    def every_promise_holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        found = check_cache(self.cache)
        assert set(found) == self.committed
        for prefix, slot in found.items():
            assert self.written[slot] == prefix
        for _, (namespace, tokens) in self.held:
            assert set(_prefixes(namespace, tokens)) <= self.committed

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for node, _ in self.held:
            self.cache.let_go(node)
        self.cache.evict_all()
        assert self.cache.num_free == self.cache.num_blocks
        assert self.cache.num_pinned() == self.cache.cached_tokens == self.cache.num_nodes == 0


def _prefixes(namespace: str, tokens: Sequence[int]) -> list[Prefix]:
    return [(namespace, tuple(tokens[:stop])) for stop in range(1, len(tokens) + 1)]


TestAgainstADictionary = CacheMachine.TestCase
TestAgainstADictionary.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


class TestRoom:
    def test_new_tokens_continue_in_the_block_of_what_they_hang_on(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=4)
        keep(cache, [1, 2])

        segment = keep(cache, [1, 2, 3, 4, 5])

        assert segment == Segment((0, 1), 2, 3)
        assert cache.num_free == 2

    def test_only_the_first_of_two_continuations_gets_the_rest_of_the_block(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=4)
        keep(cache, [1, 2])

        first, second = keep(cache, [1, 2, 3]), keep(cache, [1, 2, 4])

        assert first == Segment((0,), 2, 1)
        assert second == Segment((1,), 0, 1)

    def test_room_that_an_evicted_continuation_leaves_is_used_again(self) -> None:
        cache = PrefixCache(num_blocks=1, block_size=4)
        keep(cache, [1, 2])
        keep(cache, [1, 2, 3, 3])
        cache.hold(node := cache.match("a", ids([1, 2])).last)

        cache.evict_all()
        cache.let_go(node)
        segment = keep(cache, [1, 2, 4, 4])

        # the node was split for the row that hung on it, so its upper half alone was held
        assert segment == Segment((0,), 2, 2)

    def test_a_failed_step_leaves_the_rest_of_the_block_free(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=4)
        keep(cache, [1, 2])
        anchor = cache.match("a", ids([1, 2])).last
        growths = [
            Growth(anchor=anchor, parent=None, start=2, tokens=ids([3]), owner=0),
            Growth(anchor=anchor, parent=0, start=3, tokens=ids([4, 5, 6]), owner=0),
            Growth(anchor=anchor, parent=0, start=3, tokens=ids([7]), owner=0),
        ]
        cache.hold(anchor)

        cache.abandon(cache.reserve(growths))
        cache.let_go(anchor)

        assert cache.num_free == 3
        check_cache(cache)
        assert keep(cache, [1, 2, 9]) == Segment((0,), 2, 1)

    def test_what_does_not_fit_beside_held_paths_is_refused_and_takes_nothing(self) -> None:
        cache = PrefixCache(num_blocks=3, block_size=2)
        keep(cache, [1, 1, 1])
        cache.hold(held := cache.match("a", ids([1, 1, 1])).last)
        root = cache.match("a", ids([2])).last
        growths = [
            Growth(anchor=root, parent=None, start=0, tokens=ids([2, 2]), owner=0),
            Growth(anchor=root, parent=0, start=2, tokens=ids([3]), owner=0),
        ]

        with pytest.raises(OutOfCapacity, match="1 blocks wanted, 0 of 3 free"):
            cache.reserve(growths)

        assert cache.num_free == 1
        check_cache(cache)
        cache.let_go(held)
        assert len(cache.reserve(growths)) == 2

    def test_room_is_found_by_eviction_only_when_it_is_needed(self) -> None:
        cache = PrefixCache(num_blocks=3, block_size=2)
        keep(cache, [1, 1])
        keep(cache, [2, 2])

        keep(cache, [3, 3])
        assert cache.take_evicted_tokens() == 0
        keep(cache, [4, 4])
        assert cache.take_evicted_tokens() == 2

    def test_a_part_of_a_row_does_not_keep_the_rest_in_memory(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=4)
        row = ids(range(2000))
        growth = Growth(anchor=cache.match("a", row).last, parent=None, start=0, tokens=row[:3], owner=0)

        (node,) = cache.commit([growth], cache.reserve([growth]))

        assert node.tokens.base is None

    def test_nothing_that_is_reserved_can_be_found_before_it_is_committed(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=4)
        root = cache.match("a", ids([1])).last
        growths = [Growth(anchor=root, parent=None, start=0, tokens=ids([1, 2, 3]), owner=0)]

        segments = cache.reserve(growths)

        assert depth(cache, [1, 2, 3]) == 0
        cache.commit(growths, segments)
        assert depth(cache, [1, 2, 3]) == 3


class TestEviction:
    def test_the_least_recently_used_goes_first(self) -> None:
        cache = PrefixCache(num_blocks=3, block_size=2)
        for token in (1, 2, 3):
            keep(cache, [token, token])
        cache.touch(cache.match("a", ids([1, 1])))

        keep(cache, [4, 4])

        assert [depth(cache, [token, token]) for token in (1, 2, 3, 4)] == [2, 0, 2, 2]

    def test_a_long_node_is_trimmed_from_its_end_and_by_no_more_than_is_wanted(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=2)
        keep(cache, list(range(8)))

        keep(cache, [9, 9, 9])

        assert depth(cache, list(range(8))) == 4
        assert cache.take_evicted_tokens() == 4
        check_cache(cache)

    def test_a_trimmed_node_is_trimmed_again_before_a_more_recent_one(self) -> None:
        cache = PrefixCache(num_blocks=4, block_size=2)
        keep(cache, [1] * 6)
        keep(cache, [2, 2])

        keep(cache, [3, 3])
        keep(cache, [4, 4])

        assert [depth(cache, [1] * 6), depth(cache, [2, 2])] == [2, 2]

    def test_what_is_used_together_goes_from_the_leaves_up(self) -> None:
        cache = PrefixCache(num_blocks=3, block_size=2)
        keep(cache, [1, 1])
        keep(cache, [1, 1, 2, 2])

        keep(cache, [3, 3, 3, 3])

        assert depth(cache, [1, 1, 2, 2]) == 2

    def test_a_block_that_two_halves_of_a_node_share_is_freed_with_the_second(self) -> None:
        cache = PrefixCache(num_blocks=3, block_size=4)
        keep(cache, [1, 2, 3, 4])
        keep(cache, [1, 2, 9])
        cache.hold(upper := cache.match("a", ids([1, 2])).last)
        assert cache.num_free == 1

        cache.evict_all()
        assert (cache.num_free, depth(cache, [1, 2, 3])) == (2, 2)
        cache.let_go(upper)
        cache.evict_all()

        assert cache.num_free == 3

    def test_b017_a_held_path_survives_while_everything_else_goes(self) -> None:
        cache = PrefixCache(num_blocks=8, block_size=2)
        keep(cache, [1, 2, 3])
        keep(cache, [1, 2, 4])
        keep(cache, [5])
        cache.hold(node := cache.match("a", ids([1, 2, 4])).last)
        assert cache.num_pinned() == 2

        cache.evict_all()

        assert (depth(cache, [1, 2, 4]), depth(cache, [1, 2, 3]), depth(cache, [5])) == (3, 2, 0)
        assert cache.num_pinned() == cache.num_blocks - cache.num_free == 2
        cache.let_go(node)
        assert cache.num_pinned() == 0


class TestDistrust:
    def test_drops_a_path_up_to_where_others_hang_on_it(self) -> None:
        cache = PrefixCache(num_blocks=8, block_size=2)
        for path in ([1, 2], [1, 2, 3, 3], [1, 2, 3, 3, 4], [1, 2, 5]):
            keep(cache, path)

        cache.distrust(cache.match("a", ids([1, 2, 3, 3, 4])))

        assert [depth(cache, path) for path in ([1, 2, 3, 3, 4], [1, 2, 5])] == [2, 3]
        check_cache(cache)

    def test_drops_a_node_that_the_row_ends_in(self) -> None:
        cache = PrefixCache(num_blocks=8, block_size=2)
        keep(cache, [1, 2, 3, 4])

        cache.distrust(cache.match("a", ids([1, 2])))

        assert depth(cache, [1, 2, 3, 4]) == 0
        assert cache.num_free == 8

    def test_leaves_what_is_held(self) -> None:
        cache = PrefixCache(num_blocks=8, block_size=2)
        keep(cache, [1, 2])
        keep(cache, [1, 2, 3])
        cache.hold(cache.match("a", ids([1, 2])).last)

        cache.distrust(cache.match("a", ids([1, 2, 3])))

        assert depth(cache, [1, 2, 3]) == 2

    def test_of_nothing_is_harmless(self) -> None:
        cache = PrefixCache(num_blocks=8, block_size=2)
        keep(cache, [1])

        cache.distrust(cache.match("a", ids([2])))

        assert depth(cache, [1]) == 1


class TestNamespaces:
    def test_share_nothing_but_the_pool(self) -> None:
        cache = PrefixCache(num_blocks=2, block_size=4)
        keep(cache, [1, 2], "a")

        assert depth(cache, [1, 2], "b") == 0
        keep(cache, [1, 2], "b")
        assert cache.num_free == 0
        assert cache.cached_tokens == 4

    def test_are_forgotten_with_the_last_of_their_tokens(self) -> None:
        cache = PrefixCache(num_blocks=2, block_size=4)
        depth(cache, [1], "asked for only")
        for number in range(20):
            keep(cache, [1], str(number))

        cache.forget_empty_namespaces()

        assert set(cache._tree._roots) == {"18", "19"}
        cache.evict_all()
        cache.forget_empty_namespaces()
        assert not cache._tree._roots
        assert not cache._tree._namespaces

    def test_come_back_after_they_were_forgotten(self) -> None:
        cache = PrefixCache(num_blocks=2, block_size=4)
        for _ in range(3):
            assert depth(cache, [1, 2], "a") == 0
            keep(cache, [1, 2], "a")
            assert depth(cache, [1, 2], "a") == 2
            cache.evict_all()
            cache.forget_empty_namespaces()
