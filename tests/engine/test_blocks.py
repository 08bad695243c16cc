from __future__ import annotations

import random
from collections import Counter

import pytest

from engine.blocks import BlockAllocator
from engine.errors import OutOfCapacity


def free_blocks(blocks: BlockAllocator) -> set[int]:
    return {block for block in range(blocks.num_blocks) if blocks.holders(block) == 0}


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_counter_over_random_calls(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([1, 2, 8, 33])
    blocks, model = BlockAllocator(total), Counter[int]()

    for _ in range(300):
        held = sorted(block for block, holders in model.items() if holders)
        some = rng.sample(held, rng.randrange(len(held) + 1))
        match rng.choice(["allocate", "retain", "release", "release"]):
            case "allocate":
                want = rng.randrange(total + 2)
                if want > total - len(held):
                    with pytest.raises(OutOfCapacity):
                        blocks.allocate(want)
                else:
                    taken = blocks.allocate(want)
                    assert taken == sorted(set(taken))
                    assert len(taken) == want
                    assert not set(taken) & set(held)
                    model.update(taken)
            case "retain":
                blocks.retain(some)
                model.update(some)
            case "release":
                blocks.release(some)
                model.subtract(some)

        assert [blocks.holders(block) for block in range(total)] == [model[block] for block in range(total)]
        assert blocks.num_free == sum(model[block] == 0 for block in range(total))
        assert blocks.num_free + blocks.num_held == blocks.num_blocks == total


@pytest.mark.parametrize("seed", range(5))
def test_of_all_windows_of_free_blocks_the_first_with_the_least_spread_is_taken(seed: int) -> None:
    """In a pool of some thousands, nearly full and nearly empty by turns."""
    rng = random.Random(seed)
    blocks = BlockAllocator(3000)
    held: list[int] = []
    for _ in range(40):
        want = min(rng.choice([1, 2, 5, 40, 900]), blocks.num_free)
        free = sorted(set(range(3000)) - set(held))
        windows = [free[first : first + want] for first in range(len(free) - want + 1)]

        taken = blocks.allocate(want)
        assert taken == min(windows, key=lambda window: window[-1] - window[0] if window else 0)

        held += taken
        rng.shuffle(held)
        given_up, held = held[: (cut := rng.choice([0, 1, len(held) // 2]))], held[cut:]
        blocks.release(given_up)


def test_b020_a_block_cannot_be_freed_twice() -> None:
    blocks = BlockAllocator(8)
    first, *_ = blocks.allocate(3)

    with pytest.raises(ValueError, match="comes twice"):
        blocks.release([first, first])
    assert blocks.num_free == 5
    blocks.release([first])
    assert blocks.num_free == 6
    with pytest.raises(ValueError, match=f"block {first} is not held"):
        blocks.release([first])

    assert blocks.num_free == 6
    assert len(set(blocks.allocate(6))) == 6
    assert blocks.num_free == 0


def test_a_refused_release_or_retain_changes_nothing() -> None:
    blocks = BlockAllocator(4)
    held = blocks.allocate(2)
    (free, _) = sorted(free_blocks(blocks))

    for wrong in ([*held, free], [held[0], held[0]]):
        with pytest.raises(ValueError, match="block"):
            blocks.release(wrong)
        with pytest.raises(ValueError, match="block"):
            blocks.retain(wrong)

    assert [blocks.holders(block) for block in held] == [1, 1]
    assert blocks.num_free == 2


@pytest.mark.parametrize("outside", [-1, 4, 1 << 40])
def test_a_block_that_does_not_exist_is_refused(outside: int) -> None:
    blocks = BlockAllocator(4)
    blocks.allocate(4)

    with pytest.raises(ValueError, match=f"block {outside} does not exist; ids are 0 to 3"):
        blocks.release([outside])
    with pytest.raises(ValueError, match=f"block {outside} does not exist; ids are 0 to 3"):
        blocks.retain([outside])

    assert [blocks.holders(block) for block in range(4)] == [1, 1, 1, 1]


def test_a_block_is_free_only_when_its_last_holder_lets_go() -> None:
    blocks = BlockAllocator(2)
    block, *_ = blocks.allocate(1)
    blocks.retain([block])

    blocks.release([block])
    assert blocks.num_free == 1
    blocks.release([block])
    assert blocks.num_free == 2


def test_refusal_states_wanted_and_free_and_takes_nothing() -> None:
    blocks = BlockAllocator(3)
    blocks.allocate(2)

    with pytest.raises(OutOfCapacity, match="2 blocks wanted, 1 of 3 free"):
        blocks.allocate(2)

    assert blocks.num_free == 1


def test_neighbours_are_handed_out_together_when_there_are_any() -> None:
    blocks = BlockAllocator(10)
    blocks.allocate(10)
    blocks.release([0, 2, 5, 6, 7, 9])

    assert blocks.allocate(3) == [5, 6, 7]


def test_scattered_blocks_are_handed_out_when_there_is_no_run() -> None:
    blocks = BlockAllocator(7)
    blocks.allocate(7)
    blocks.release([0, 2, 4, 6])

    assert len(blocks.allocate(4)) == 4


def test_nothing_is_a_possible_wish() -> None:
    blocks = BlockAllocator(1)
    blocks.allocate(1)

    assert blocks.allocate(0) == []


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_a_pool_has_at_least_one_block(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"num_blocks is {num_blocks}; it must be at least 1"):
        BlockAllocator(num_blocks)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count is -1"):
        BlockAllocator(4).allocate(-1)
