"""The attention in C gives a row the same bits in every step, whatever else is in it and wherever keys come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.api import AttentionShape, IntArray, SpanTable
from kernels.native import NativeOps, load_native_ops
from tests.kernels.cases import Node, keep_queries, make_table
from tests.kernels.libraries import built_for

NATIVE = load_native_ops()
WITHOUT_TILES = built_for("x86-64-v4-bf16")
pytestmark = pytest.mark.skipif(
    NATIVE is None or NATIVE.attention is None, reason="no AVX512-BF16 or no C compiler here"
)

BLOCK_SIZE = 16
# lengths around the tile of 32 keys and the stretch of 512 in which sums are taken
LENGTHS = (1, 2, 5, 15, 16, 17, 31, 32, 33, 47, 64, 100, 481, 511, 512, 513, 700)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Tokens behind those of ``parent``; a token is a number that stands for its query, key and value."""

    parent: int | None
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Query, key and value of every token, ``[N, H or H_kv, D]``."""

    shape: AttentionShape
    query: Tensor
    key: Tensor
    value: Tensor


def random_branches(rng: np.random.Generator) -> list[Branch]:
    branches: list[Branch] = []
    first = 0
    for index in range(7):
        parent = None if index == 0 else int(rng.integers(max(index - 3, 0), index))
        length = int(rng.choice(LENGTHS))
        branches.append(Branch(parent=parent, tokens=list(range(first, first + length))))
        first += length
    return branches


def random_numbers(rng: np.random.Generator, shape: AttentionShape, num_tokens: int) -> Numbers:
    torch.manual_seed(int(rng.integers(1 << 30)))

    def random(heads: int) -> Tensor:
        return torch.randn(num_tokens, heads, shape.head_dim)

    # some rows look at all keys nearly alike, some at hardly more than one
    size = torch.tensor([0.1, 1.0, 4.0])[torch.arange(num_tokens) % 3, None, None]
    # large values that nearly cancel: another order of sums shows in a bfloat16
    large = torch.where(torch.rand(num_tokens, 1, 1) < 0.5, -100.0, 100.0)
    return Numbers(
        shape=shape,
        query=(random(shape.num_heads) * size).bfloat16(),
        key=(random(shape.num_kv_heads) * 1.5).bfloat16(),
        value=(random(shape.num_kv_heads) + large).bfloat16(),
    )


def path_to(branches: list[Branch], index: int) -> list[int]:
    branch = branches[index]
    return (path_to(branches, branch.parent) if branch.parent is not None else []) + branch.tokens


def random_nodes(rng: np.random.Generator, branches: list[Branch]) -> list[tuple[Node, list[int]]]:
    """The branches cut into nodes anywhere, some of them left out, some cached; with the tokens of each."""
    nodes: list[tuple[Node, list[int]]] = []
    ends: dict[int, int] = {}
    for index, branch in enumerate(branches):
        if branch.parent is not None and (branch.parent not in ends or rng.random() < 0.2):
            continue
        cuts = rng.integers(0, len(branch.tokens) + 1, size=int(rng.integers(4)))
        edges = sorted({0, len(branch.tokens), *cuts.tolist()})
        parent = None if branch.parent is None else ends[branch.parent]
        for low, high in pairwise(edges):
            cached = (parent is None or nodes[parent][0].cached) and bool(rng.random() < 0.6)
            nodes.append((Node(parent=parent, tokens=high - low, cached=cached), branch.tokens[low:high]))
            parent = len(nodes) - 1
        assert parent is not None
        ends[index] = parent
    return nodes


def packed_paths(nodes: list[tuple[Node, list[int]]]) -> Iterator[list[int]]:
    """The tokens up to every fresh one, depth first."""

    def visit(parent: int | None, path: list[int]) -> Iterator[list[int]]:
        for index, (node, tokens) in enumerate(nodes):
            if node.parent == parent:
                if not node.cached:
                    yield from (path + tokens[:end] for end in range(1, len(tokens) + 1))
                yield from visit(index, path + tokens)

    return visit(None, [])


def attend(
    native: NativeOps, numbers: Numbers, table: SpanTable, paths: list[list[int]], rows: IntArray, num_threads: int
) -> Tensor:
    """Attention of the packed ``rows`` of a step with these ``paths``; pools hold NaN where no span reaches."""
    shape = numbers.shape
    num_slots = (int(table.block_ids.max(initial=0)) + 1) * BLOCK_SIZE
    packed = [number[[path[-1] for path in paths]] for number in (numbers.key, numbers.value)]
    pools = [torch.full((shape.num_kv_heads, num_slots, shape.head_dim), torch.nan).bfloat16() for _ in range(2)]
    for span in np.flatnonzero(table.from_pool & (table.query_lo < table.query_hi)):
        along = table.key_lo[span] + np.arange(table.key_tokens[span])
        slots = table.block_ids[along // BLOCK_SIZE] * BLOCK_SIZE + along % BLOCK_SIZE
        tokens = paths[int(table.query_lo[span])][table.key_position[span] :][: len(slots)]
        for pool, number in zip(pools, (numbers.key, numbers.value), strict=True):
            pool[:, slots] = number[tokens].transpose(0, 1)
    group = shape.num_heads // shape.num_kv_heads
    assert native.attention is not None
    work = native.attention.cut(
        keep_queries(table, rows), group=group, kv_heads=shape.num_kv_heads, num_threads=num_threads
    )
    query = numbers.query[[paths[row][-1] for row in rows]]
    return native.attention(query, packed[0], packed[1], pools[0], pools[1], work, shape)


def alone(native: NativeOps, numbers: Numbers, branches: list[Branch]) -> Tensor:
    """The result of every token, each from a step of one span: its own path and no other."""
    out = torch.full(numbers.query.shape, torch.nan).bfloat16()
    for index in range(len(branches)):
        path = path_to(branches, index)
        one = np.zeros(1, np.int32)
        table = SpanTable(
            positions=np.arange(len(path), dtype=np.int32),
            query_lo=one,
            query_hi=one + len(path),
            key_lo=one,
            key_tokens=one + len(path),
            key_position=one,
            from_pool=one.astype(bool),
            causal=~one.astype(bool),
            block_ids=one[:0],
            block_size=BLOCK_SIZE,
        )
        every = np.arange(len(path), dtype=np.int32)
        out[path] = attend(native, numbers, table, [path[: end + 1] for end in every], every, num_threads=1)
    return out


@pytest.fixture
def _same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_same_threads_after")
@pytest.mark.parametrize("native", [NATIVE, WITHOUT_TILES], ids=["best", "without_tiles"])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "window", "soft_cap"),
    [
        (2, 2, 64, None, None),
        (9, 3, 64, None, None),
        (7, 1, 128, None, None),
        (6, 2, 80, None, None),
        (6, 2, 64, 70, None),
        (2, 2, 80, 600, None),
        (7, 1, 64, None, 2.0),
        (3, 1, 128, 33, 5.0),
    ],
)
def test_a_row_has_the_same_bits_in_every_step(
    native: NativeOps | None,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None,
    soft_cap: float | None,
) -> None:
    if native is None:
        pytest.skip("no AVX512-BF16 without AMX here")
    rng = np.random.default_rng(num_heads * head_dim)
    branches = random_branches(rng)
    shape = AttentionShape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=window,
        soft_cap=soft_cap,
    )
    numbers = random_numbers(rng, shape, branches[-1].tokens[-1] + 1)
    wanted = alone(native, numbers, branches)
    for num_threads in (1, 2, 16, 1, 2, 1):
        nodes = random_nodes(rng, branches)
        paths = list(packed_paths(nodes))
        table, num_fresh, _ = make_table([node for node, _ in nodes], block_size=BLOCK_SIZE, rng=rng)
        assert num_fresh == len(paths)
        some = np.flatnonzero(rng.random(num_fresh) < rng.choice([0.02, 0.3, 1.0])).astype(np.int32)
        torch.set_num_threads(min(num_threads, 2))
        got = attend(native, numbers, table, paths, some, num_threads)

        assert torch.equal(got, wanted[[paths[row][-1] for row in some]])


@pytest.mark.usefixtures("_same_threads_after")
@pytest.mark.parametrize("native", [NATIVE, WITHOUT_TILES], ids=["best", "without_tiles"])
@pytest.mark.parametrize("cached", [[2000], [700, 1, 1299], [1536, 464]])
def test_threads_that_share_the_keys_of_a_row_give_the_bits_of_one(native: NativeOps | None, cached: list[int]) -> None:
    """Two threads have a head each and share the third; of sixteen none has a whole head."""
    if native is None:
        pytest.skip("no AVX512-BF16 without AMX here")
    rng = np.random.default_rng(0)
    shape = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
    path = Branch(parent=None, tokens=[*range(2024)])
    numbers = random_numbers(rng, shape, 2024)
    parents = [None, *range(len(cached))]
    nodes = [Node(parent=parents[n], tokens=tokens, cached=True) for n, tokens in enumerate(cached)]
    nodes.append(Node(parent=parents[-1], tokens=24, cached=False))
    table, _, _ = make_table(nodes, block_size=BLOCK_SIZE, rng=rng)
    paths = [path.tokens[: end + 1] for end in range(2000, 2024)]
    wanted = alone(native, numbers, [path])[2000:]
    for num_threads in (1, 2, 16):
        torch.set_num_threads(min(num_threads, 2))

        assert torch.equal(attend(native, numbers, table, paths, np.arange(24, dtype=np.int32), num_threads), wanted)
