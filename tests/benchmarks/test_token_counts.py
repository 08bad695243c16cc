from __future__ import annotations

import random

import pytest

from benchmarks.token_counts import PerfectCache, Work
from benchmarks.workloads import Group, Phase, PhaseKind


def phase(*groups: Group, kind: PhaseKind = "together") -> Phase:
    return Phase("p", kind, groups)


def test_shared_prefix_is_computed_once_and_then_kept() -> None:
    cache = PerfectCache()

    cold = cache.run(phase(Group((1, 2), (3,), ((4,), (5,)))))
    warm = cache.run(phase(Group((1, 2), (3,), ((6, 7),))))

    # positions 0, 1, 2 see 1, 2, 3 keys; the two tails see 4 each; then 4 and 5
    assert cold == Work(received=8, unique=5, attended=1 + 2 + 3 + 4 + 4)
    assert warm == Work(received=5, unique=2, attended=4 + 5)


def test_tails_are_forgotten() -> None:
    cache = PerfectCache()
    group = Group((1,), (), ((2, 3),))
    cache.run(phase(group))

    assert cache.run(phase(group)).unique == 2


def test_tails_that_begin_alike_share_their_beginning_when_they_are_together() -> None:
    group = Group((1,), (), ((2, 3), (2, 4)))

    assert PerfectCache().run(phase(group)).unique == 4


def test_tails_that_are_sent_one_by_one_share_only_what_is_kept() -> None:
    group = Group((1,), (), ((2, 3), (2, 4)))

    assert PerfectCache().run(phase(group, kind="one_by_one")) == Work(received=6, unique=5, attended=1 + 2 * (2 + 3))


def test_head_is_shared_between_groups() -> None:
    groups = (Group((1, 2), (3,), ((5,),)), Group((1, 2), (4,), ((5,),)))

    assert PerfectCache().run(phase(*groups)).unique == 2 + 2 + 2


def test_same_tokens_behind_other_tokens_are_other_positions() -> None:
    assert PerfectCache().run(phase(Group((), (), ((1, 2), (2, 2))))).unique == 4


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_counting_distinct_prefixes(seed: int) -> None:
    rng = random.Random(seed)

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(rng.choices((1, 2), k=rng.randint(0, most)))

    cache, kept = PerfectCache(), set[tuple[int, ...]]()
    for _ in range(4):
        groups = [Group(tokens(3), tokens(3), tuple((*tokens(4), 9) for _ in range(3))) for _ in range(3)]
        prompts = [group.prefix + tail for group in groups for tail in group.tails]
        wanted = {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)} - kept

        work = cache.run(phase(*groups))

        assert work.unique == len(wanted)
        assert work.attended == sum(map(len, wanted))
        kept |= {group.prefix[:end] for group in groups for end in range(1, len(group.prefix) + 1)}
