"""Random steps for every kernel set: tries, their span tables, and poisoned pools.

A trie is grown node by node, cached nodes first; the span table is written from it by the
rules of DESIGN (own node causally, every ancestor in full), independently of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.api import CODE_LIMIT, AttentionShape, IntArray, PoolHalf, QuantisedPool, SpanTable
from kernels.weights import CodedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A run of tokens below its parent; nodes of a trie are listed parents first."""

    parent: int | None
    tokens: int
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of ``attend``; ``table`` is what ``plan`` is given."""

    table: SpanTable
    shape: AttentionShape
    query: Tensor
    key: Tensor
    value: Tensor
    key_pool: PoolHalf
    value_pool: PoolHalf


@dataclass(slots=True)
class _Draft:
    """Spans while they are written, in rows of the packed axis."""

    rows: list[tuple[int, int, int, int, int, bool, bool]] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)


def random_trie(rng: np.random.Generator, *, num_nodes: int, max_tokens: int) -> list[Node]:
    """A forest in which every cached node has cached ancestors and every leaf is fresh."""
    nodes: list[Node] = []
    for _ in range(num_nodes):
        parent = None if not nodes or rng.random() < 0.15 else int(rng.integers(len(nodes)))
        may_cache = parent is None or nodes[parent].cached
        tokens = 1 if rng.random() < 0.2 else int(rng.integers(1, max_tokens + 1))
        nodes.append(Node(parent=parent, tokens=tokens, cached=bool(may_cache and rng.random() < 0.6)))
    with_children = {node.parent for node in nodes}
    for index, node in enumerate(list(nodes)):
        if node.cached and index not in with_children:
            nodes.append(Node(parent=index, tokens=int(rng.integers(1, max_tokens + 1)), cached=False))
    return nodes


def prefix_with_rows(prefix_tokens: int, row_tokens: list[int]) -> list[Node]:
    """A cached prefix (none when 0) shared by fresh rows."""
    if not prefix_tokens:
        return [Node(parent=None, tokens=tokens, cached=False) for tokens in row_tokens]
    rows = [Node(parent=0, tokens=tokens, cached=False) for tokens in row_tokens]
    return [Node(parent=None, tokens=prefix_tokens, cached=True), *rows]


def make_case(
    nodes: list[Node],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    soft_cap: float | None = None,
    read_ratio: float | None = None,
    codes: torch.dtype | None = None,
    seed: int = 0,
) -> Case:
    """Tensors and a span table for one step over ``nodes``.

    Args:
        read_ratio: Keep about this share of the query rows, as the last layer does.
        codes: Quantise the pools to this dtype; the scales of unused slots are NaN.
    """
    rng = np.random.default_rng(seed)
    table, num_fresh, num_blocks = make_table(nodes, block_size=block_size, rng=rng)
    if read_ratio is not None:
        table = keep_queries(table, np.flatnonzero(rng.random(num_fresh) < read_ratio).astype(np.int32))
    torch.manual_seed(seed)
    key = torch.randn(num_fresh, num_kv_heads, head_dim)
    value = torch.randn(num_fresh, num_kv_heads, head_dim)
    live = torch.from_numpy(_live_slots(table, num_blocks * block_size))
    pools: list[PoolHalf] = []
    for _ in range(2):
        pool = torch.full((num_kv_heads, len(live), head_dim), float("nan"))
        pool[:, live] = torch.randn(num_kv_heads, int(live.sum()), head_dim)
        pools.append(pool.to(dtype) if codes is None else _in_codes(pool, codes))
    return Case(
        table=table,
        shape=AttentionShape(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            window=window,
            soft_cap=soft_cap,
        ),
        query=torch.randn(table.num_queries, num_heads, head_dim).to(dtype),
        key=key.to(dtype),
        value=value.to(dtype),
        key_pool=pools[0],
        value_pool=pools[1],
    )


def _in_codes(pool: Tensor, dtype: torch.dtype) -> QuantisedPool:
    scales = pool.abs().amax(-1) / CODE_LIMIT[dtype]
    ratio = (pool / scales[..., None]).nan_to_num(CODE_LIMIT[dtype])
    return QuantisedPool(codes=(ratio.round() if dtype == torch.int8 else ratio).to(dtype), scales=scales)


def make_table(nodes: list[Node], *, block_size: int, rng: np.random.Generator) -> tuple[SpanTable, int, int]:
    """The span table of one step over ``nodes``, its fresh tokens and the blocks of its pool."""
    children: dict[int | None, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    draft = _Draft()
    blocks = _hand_out_blocks(nodes, block_size=block_size, rng=rng)
    positions: list[int] = []

    def visit(index: int, position: int) -> None:
        node = nodes[index]
        lo = len(positions)
        if not node.cached:
            positions.extend(range(position, position + node.tokens))
        own_hi = len(positions)
        for child in children.get(index, []):
            visit(child, position + node.tokens)
        if node.cached:
            block_ids, offset = blocks[index]
            key_lo = len(draft.block_ids) * block_size + offset
            draft.block_ids.extend(block_ids)
            draft.rows.append((lo, len(positions), key_lo, node.tokens, position, True, False))
        else:
            draft.rows.append((lo, own_hi, lo, node.tokens, position, False, True))
            if len(positions) > own_hi:
                draft.rows.append((own_hi, len(positions), lo, node.tokens, position, False, False))

    for root in children.get(None, []):
        visit(root, 0)
    columns = np.array([draft.rows[i] for i in rng.permutation(len(draft.rows))], dtype=np.int32).reshape(-1, 7).T
    table = SpanTable(
        positions=np.array(positions, dtype=np.int32),
        query_lo=columns[0],
        query_hi=columns[1],
        key_lo=columns[2],
        key_tokens=columns[3],
        key_position=columns[4],
        from_pool=columns[5].astype(bool),
        causal=columns[6].astype(bool),
        block_ids=np.array(draft.block_ids, dtype=np.int32),
        block_size=block_size,
    )
    return table, len(positions), max(sum(len(ids) for ids, _ in blocks.values()), 1) + 2


def keep_queries(table: SpanTable, rows: IntArray) -> SpanTable:
    """The table of the last layer: only the query rows ``rows`` (ascending) remain."""
    query_lo = np.searchsorted(rows, table.query_lo).astype(np.int32)
    query_hi = np.searchsorted(rows, table.query_hi).astype(np.int32)
    used = query_lo < query_hi
    return SpanTable(
        positions=table.positions[rows],
        query_lo=query_lo[used],
        query_hi=query_hi[used],
        key_lo=table.key_lo[used],
        key_tokens=table.key_tokens[used],
        key_position=table.key_position[used],
        from_pool=table.from_pool[used],
        causal=table.causal[used],
        block_ids=table.block_ids,
        block_size=table.block_size,
    )


def _hand_out_blocks(
    nodes: list[Node], *, block_size: int, rng: np.random.Generator
) -> dict[int, tuple[list[int], int]]:
    """Permuted blocks per cached node and the offset of its first token; sharing as splits do.

    A first child that is cached starts in the block where its parent ended, so that two
    nodes hold one block.
    """
    taken: list[tuple[int, list[int], int]] = []
    ends: dict[int, tuple[int, int]] = {}  # node -> (last block, slots used in it)
    num_blocks = 0
    for index, node in enumerate(nodes):
        if not node.cached:
            continue
        shared = None if node.parent is None else ends.pop(node.parent, None)
        if shared is not None and shared[1] < block_size:
            first, offset = [shared[0]], shared[1]
        else:
            first, offset = [], int(rng.integers(block_size)) if rng.random() < 0.5 else 0
        fill = -(-(offset + node.tokens) // block_size) - len(first)
        ids = [*first, *range(num_blocks, num_blocks + fill)]
        num_blocks += fill
        ends[index] = (ids[-1], (offset + node.tokens - 1) % block_size + 1)
        taken.append((index, ids, offset))
    order = rng.permutation(num_blocks + 2)  # two blocks stay unused
    return {index: ([int(order[i]) for i in ids], offset) for index, ids, offset in taken}


def _live_slots(table: SpanTable, num_slots: int) -> np.ndarray:
    live = np.zeros(num_slots, dtype=bool)
    for m in np.flatnonzero(table.from_pool):
        for j in range(table.key_tokens[m]):
            block, in_block = divmod(int(table.key_lo[m]) + j, table.block_size)
            live[table.block_ids[block] * table.block_size + in_block] = True
    return live


def coded_weight(rows: int, inputs: int, *, bits: int, dtype: torch.dtype = torch.bfloat16) -> CodedWeight:
    """Codes of all values, for numbers of magnitudes that a layer has."""
    rng = torch.Generator().manual_seed(rows + inputs + bits)
    least, most = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(least, most, (rows, inputs), generator=rng, dtype=torch.int8)
    scales, offsets = torch.randn(2, rows, inputs // 32, generator=rng).div_(8 * most).half().float()
    return CodedWeight(codes=codes, scales=scales, offsets=offsets, bits=bits, dtype=dtype)


def two_rows_below_a_prefix() -> SpanTable:
    """Two rows of 3 and 2 tokens below a cached prefix of 20 (two blocks of 16), spans in a fixed order."""
    return SpanTable(
        positions=np.array([20, 21, 22, 20, 21], np.int32),
        query_lo=np.array([0, 0, 3], np.int32),
        query_hi=np.array([5, 3, 5], np.int32),
        key_lo=np.array([0, 0, 3], np.int32),
        key_tokens=np.array([20, 3, 2], np.int32),
        key_position=np.array([0, 20, 20], np.int32),
        from_pool=np.array([True, False, False]),
        causal=np.array([False, True, True]),
        block_ids=np.array([4, 1], np.int32),
        block_size=16,
    )
