"""Counts the holders of every KV block and hands out free ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import OutOfCapacity

BlockId = int

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
_SEARCHED = 1024  # blocks looked at together for a free one


class BlockAllocator:
    """Hands out fixed-size KV blocks and counts their holders.

    A block is free (0 holders) or held (1 or more). Holders are the nodes of the prefix tree
    whose tokens lie in it, and a step that is about to write it; two nodes made by a split
    inside a block both hold it.

    Invariant: ``num_free + num_held == num_blocks``, at every return and every raise.
    Not thread-safe: the engine thread owns it.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; it must be at least 1")
        self._holders = np.zeros(num_blocks, dtype=np.int64)
        self._num_free = num_blocks
        self._lowest_free = 0  # no block before it is free

    @property
    def num_blocks(self) -> int:
        return len(self._holders)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_held(self) -> int:
        return self.num_blocks - self._num_free

    def holders(self, block: BlockId) -> int:
        """How many hold ``block``; 0 means free."""
        return int(self._holders[block])

    def allocate(self, count: int) -> list[BlockId]:
        """Take ``count`` free blocks, each with one holder: the caller.

        Neighbours are preferred, so that the slots of a node form one run whenever the free
        blocks allow it. All or nothing: on failure no block changes hands, so the caller may
        evict and ask again.

        Returns:
            ``count`` distinct ids in ascending order. Their memory is not cleared.

        Raises:
            OutOfCapacity: fewer than ``count`` blocks are free.
        """
        if count < 0:
            raise ValueError(f"count is {count}; it must not be negative")
        if count > self._num_free:
            raise OutOfCapacity(f"{count} blocks wanted, {self._num_free} of {self.num_blocks} free")
        if count == 0:
            return []
        taken = self._closest_free(count)
        self._holders[taken] = 1
        self._num_free -= count
        return taken.tolist()

    def retain(self, blocks: Sequence[BlockId]) -> None:
        """Add one holder to each of ``blocks``, all of them held already and distinct.

        Raises:
            ValueError: a block is free, does not exist, or comes twice; nothing has changed.
        """
        held = self._checked(blocks)
        self._holders[held] += 1

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Take one holder from each of ``blocks``; those left with none become free.

        Raises:
            ValueError: a block is free already, does not exist, or comes twice; nothing has changed.
        """
        held = self._checked(blocks)
        self._holders[held] -= 1
        freed = held[self._holders[held] == 0]
        self._num_free += len(freed)
        self._lowest_free = min(self._lowest_free, int(freed.min(initial=self.num_blocks)))

    def _closest_free(self, count: int) -> _Ids:
        """Of all windows of ``count`` ascending free ids, the first with the least spread."""
        while not (free := self._holders[self._lowest_free : self._lowest_free + _SEARCHED] == 0).any():
            self._lowest_free += _SEARCHED
        self._lowest_free += int(free.argmax())
        run = self._holders[self._lowest_free : self._lowest_free + count]
        if len(run) == count and not run.any():  # the usual case, and its cost does not grow with the pool
            return np.arange(self._lowest_free, self._lowest_free + count)
        found = np.flatnonzero(self._holders == 0)
        spread = found[count - 1 :] - found[: len(found) - count + 1]
        first = int(spread.argmin())
        return found[first : first + count]

    def _checked(self, blocks: Sequence[BlockId]) -> _Ids:
        held = np.asarray(blocks, dtype=np.int64)
        if len(np.unique(held)) != len(held):
            raise ValueError(f"a block comes twice in {list(blocks)}")
        outside = held[(held < 0) | (held >= self.num_blocks)]
        if len(outside):
            raise ValueError(f"block {int(outside[0])} does not exist; ids are 0 to {self.num_blocks - 1}")
        free = held[self._holders[held] == 0]
        if len(free):
            raise ValueError(f"block {int(free[0])} is not held")
        return held
