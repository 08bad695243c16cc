"""An engine on paper: real bookkeeping and real batches under a decoder that checks instead of computing.

The "keys and values" of a token are its namespace and its whole prefix. So a slot that is read
for the wrong row, overwritten while it is needed, or found before it was written, shows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

import torch
from torch import Tensor

from engine.batch import ExtendBatch
from engine.kv_pool import KvPool
from engine.model import Decoder
from engine.prefix_cache import PrefixCache
from engine.prefix_tree import Node
from engine.readout import LmHead
from engine.records import Row, RowUsage, ScoreTask, StepStats
from engine.row_order import order_rows
from engine.scheduler import Scheduler, Step
from engine.sequence import TaskState
from engine.step import StepFailed, StepRunner
from kernels.api import SpanTable
from kernels.reference import ReferenceKernels
from tests.helpers.tries import Prefix, Tokens

VOCABULARY = 16


def make_task(rows: Sequence[Row], *, namespace: str = "a", task_id: str = "t", serial: int = 0) -> TaskState:
    task = ScoreTask(task_id=task_id, namespace=namespace, rows=tuple(rows))
    return TaskState(task, serial, Future(), order_rows([row.tokens for row in rows]))


def cached_prefixes(cache: PrefixCache) -> dict[Prefix, int]:
    """Everything that can be found in the cache, with the slot it is said to be in."""
    found: dict[Prefix, int] = {}
    for namespace, root in cache._tree._roots.items():
        stack: list[tuple[Node, Tokens]] = [(root, ())]
        while stack:
            node, before = stack.pop()
            for child in node.children.values():
                assert child.parent is node
                assert child.start == len(before)
                tokens = (*before, *child.tokens.tolist())
                for place in range(len(child.tokens)):
                    along = child.segment.offset + place
                    block = child.segment.block_ids[along // cache.block_size]
                    slot = block * cache.block_size + along % cache.block_size
                    found[namespace, tokens[: child.start + place + 1]] = slot
                stack.append((child, tokens))
    return found


def check_cache(cache: PrefixCache) -> dict[Prefix, int]:
    """Hold the cache against its promises while no step is under way; returns what is in it."""
    nodes = list(cache._tree.nodes())
    found = cached_prefixes(cache)
    assert cache.cached_tokens == sum(len(node.tokens) for node in nodes) == len(found)
    assert len(set(found.values())) == len(found), "two live tokens share a slot"
    holders = Counter(block for node in nodes for block in node.segment.block_ids)
    for block in range(cache.num_blocks):
        assert cache._blocks.holders(block) == holders[block]
    assert cache.num_free == cache.num_blocks - len(holders)
    used: Counter[int] = Counter()
    for slot in found.values():
        used[slot // cache.block_size] = max(used[slot // cache.block_size], slot % cache.block_size + 1)
    for block, fill in used.items():
        assert cache._fill[block] == fill, "the next token of a block would go to the wrong place"
    assert cache._tree.pinned == {node for node in nodes if node.pins}
    for node in nodes:
        assert node.parent is not None
        assert node.spare >= node.parent.spare, "what hangs on a spare node is kept"
        assert node.born >= node.parent.born
    assert cache.num_nodes == len(nodes)
    return found


class ToldToFail(Exception):
    """The fault that a test asked for."""


class PaperDecoder:
    """Stands in for the model: knows what every slot holds and checks what a step wants to read."""

    device = torch.device("cpu")
    head = LmHead(weight=torch.zeros(VOCABULARY, 1))

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self.slots: dict[int, Prefix] = {}
        self.step: Step | None = None
        self.computed: list[Prefix] = []
        self.fail = False

    def forward(self, batch: ExtendBatch, pool: KvPool) -> Tensor:
        del pool
        assert self.step is not None
        live = cached_prefixes(self._cache)
        for prefix, slot in live.items():
            assert self.slots[slot] == prefix
        packed = self._check_spans(batch, self.step)
        assert Counter(packed) == Counter(_wanted(self.step, live)), "not exactly what nobody has computed"
        _check_reads(batch, packed, self.step)
        self._store(batch, packed, live)
        self.computed += packed
        if self.fail:
            raise ToldToFail
        return torch.zeros(len(batch.read_rows), 1)

    def _check_spans(self, batch: ExtendBatch, step: Step) -> list[Prefix]:
        """The prefix of every packed row, found through its spans alone."""
        namespaces = [""] * len(batch.tokens)
        for node in step.trie.nodes:
            count = node.num_fresh
            namespaces[node.packed : node.packed + count] = [node.row.task.task.namespace] * count
        packed: list[Prefix] = []
        tokens = batch.tokens.tolist()
        visible = [self._visible(batch.spans, row) for row in range(len(tokens))]
        for row, keys in enumerate(visible):
            positions = [position for position, _, _ in keys]
            assert positions == list(range(int(batch.positions[row]) + 1)), "a key is missing or comes twice"
            own = tuple(self.slots[place][1][-1] if from_pool else tokens[place] for _, from_pool, place in keys)
            packed.append((namespaces[row], own))
            for position, from_pool, place in keys:
                prefix = self.slots[place] if from_pool else packed[place]
                assert prefix == (namespaces[row], own[: position + 1]), "a key of another prefix is visible"
        for read, row in enumerate(batch.read_rows.tolist()):
            assert self._visible(batch.read_spans, read) == visible[row]
        return packed

    @staticmethod
    def _visible(table: SpanTable, query: int) -> list[tuple[int, bool, int]]:
        """Position, kind and place (slot or packed row) of every key that a query sees."""
        keys = []
        for span in range(table.num_spans):
            if not table.query_lo[span] <= query < table.query_hi[span]:
                continue
            for key in range(table.key_tokens[span]):
                position = int(table.key_position[span]) + key
                place = int(table.key_lo[span]) + key
                if table.from_pool[span]:
                    block = int(table.block_ids[place // table.block_size])
                    place = block * table.block_size + place % table.block_size
                if not table.causal[span] or position <= table.positions[query]:
                    keys.append((position, bool(table.from_pool[span]), place))
        return sorted(keys)

    def _store(self, batch: ExtendBatch, packed: list[Prefix], live: dict[Prefix, int]) -> None:
        rows, slots = batch.keep_rows.tolist(), batch.keep_slots.tolist()
        assert len(set(slots)) == len(slots)
        assert not set(slots) & set(live.values()), "a live slot would be overwritten"
        kept = [packed[row] for row in rows]
        assert not set(kept) & set(live), "kept a second time"
        assert self.step is not None
        wanted = {
            (row.task.task.namespace, tuple(row.tokens[:stop].tolist()))
            for row in self.step.rows
            for stop in range(1, row.keep + 1)
        }
        assert set(kept) == wanted - set(live)
        self.slots.update(zip(slots, kept, strict=True))


def _wanted(step: Step, live: dict[Prefix, int]) -> set[Prefix]:
    """What the rows of a step need and nobody has: each position once."""
    wanted: set[Prefix] = set()
    for row in step.rows:
        tokens = tuple(row.tokens.tolist())
        namespace = row.task.task.namespace
        known = 0
        while known < len(tokens) and (namespace, tokens[: known + 1]) in live:
            known += 1
        first = min(known, row.state.first_unread)
        wanted |= {(namespace, tokens[: position + 1]) for position in range(first, row.end)}
    return wanted


def _check_reads(batch: ExtendBatch, packed: list[Prefix], step: Step) -> None:
    read_rows = batch.read_rows.tolist()
    assert read_rows == sorted(set(read_rows))
    for read in batch.reads:
        tokens = tuple(read.row.tokens.tolist())
        namespace = read.row.task.task.namespace
        ends = range(read.first + 1, read.row.end + 1)
        assert [packed[read_rows[place]] for place in read.places] == [(namespace, tokens[:end]) for end in ends]
    readers = {id(read.row) for read in batch.reads}
    assert readers == {id(row) for row in step.rows if row.end > row.state.first_unread}
    assert {place for read in batch.reads for place in read.places} == set(range(len(read_rows)))


class _WatchedScheduler(Scheduler):
    def __init__(self, cache: PrefixCache, decoder: PaperDecoder, *, step_tokens: int) -> None:
        super().__init__(cache, step_tokens=step_tokens)
        self._decoder = decoder

    def next_step(self) -> Step | None:
        self._decoder.step = super().next_step()
        return self._decoder.step


class PaperEngine:
    """Scheduler, cache and steps as the engine thread runs them, in the caller's hands."""

    def __init__(self, *, num_blocks: int = 64, block_size: int = 4, step_tokens: int = 16) -> None:
        self.cache = PrefixCache(num_blocks=num_blocks, block_size=block_size)
        self.decoder = PaperDecoder(self.cache)
        self.scheduler = _WatchedScheduler(self.cache, self.decoder, step_tokens=step_tokens)
        self.steps: list[StepStats] = []
        self._runner = StepRunner(
            decoder=cast(Decoder, self.decoder),
            pool=cast(KvPool, None),
            cache=self.cache,
            scheduler=self.scheduler,
            kernels=ReferenceKernels(),
        )
        self._serial = 0

    def add(self, rows: Sequence[Row], *, namespace: str = "a") -> TaskState:
        task = make_task(rows, namespace=namespace, serial=self._serial)
        self._serial += 1
        self.scheduler.add(task)
        return task

    def run_step(self) -> tuple[Step, StepStats] | None:
        """Run one step and leave its tasks where they are."""
        return self._runner.run()

    def step(self) -> list[TaskState]:
        """Run one step and remove the tasks that end with it, which are returned."""
        try:
            done = self._runner.run()
        except StepFailed as failure:
            if not isinstance(failure.__cause__, ToldToFail):
                raise
            ended = failure.step.tasks
        else:
            if done is None:
                return []
            step, stats = done
            self.steps.append(stats)
            ended = [task for task in step.tasks if task.finished]
        for task in ended:
            self.scheduler.remove(task)
        return ended

    def run(self, rows: Sequence[Row], *, namespace: str = "a") -> TaskState:
        """Score a task to its end, alone."""
        task = self.add(rows, namespace=namespace)
        while self.scheduler.num_tasks:
            self.step()
        return task


def usages(task: TaskState) -> list[RowUsage]:
    return [state.usage() for state in task.rows]
