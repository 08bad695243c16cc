from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.records import Sampling, TokenReadout
from engine.token_choice import choose_tokens, draw_bits, draws_for
from kernels.cpu import CpuKernels

KERNELS = CpuKernels()
VOCABULARY = 40_000  # more than one chunk


@pytest.fixture(scope="module")
def weight() -> Tensor:
    return torch.randn(VOCABULARY, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def hidden() -> Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def choose(
    reads: Sequence[TokenReadout], hidden: Tensor, weight: Tensor, soft_cap: float | None = None
) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of the branches of each row."""
    draws = torch.from_numpy(draws_for(reads))
    ids, log_probs = choose_tokens(reads, draws, hidden, weight, soft_cap, KERNELS)
    counts = [len(read.branches) for read in reads]
    return [
        (a.tolist(), b.tolist()) for a, b in zip(torch.split(ids, counts), torch.split(log_probs, counts), strict=True)
    ]


def chosen(logits: list[float], count: int, **sampling: float) -> Counter[int]:
    """How often each token is chosen by ``count`` branches whose logits are given."""
    weight = torch.tensor(logits)[:, None]
    read = TokenReadout(sampling=Sampling(**sampling), branches=tuple(range(count)))  # type: ignore[arg-type]
    ((ids, _),) = choose([read], torch.ones(1, 1), weight)
    return Counter(ids)


def test_greedy_is_the_greatest_logit_of_the_whole_vocabulary(hidden: Tensor, weight: Tensor) -> None:
    reads = [TokenReadout(sampling=Sampling())] * 3

    found = choose(reads, hidden, weight)

    logits = hidden.double() @ weight.double().T
    assert [ids for ids, _ in found] == [[token] for token in logits.argmax(-1).tolist()]
    expected = logits.log_softmax(-1).amax(-1)
    assert [log_probs[0] for _, log_probs in found] == pytest.approx(expected.tolist(), abs=1e-4)


def test_rows_of_all_kinds_and_branches_are_chosen_as_each_alone(hidden: Tensor, weight: Tensor) -> None:
    reads = [
        TokenReadout(sampling=Sampling(temperature=1.0, seed=5), branches=(0, 3, 4)),
        TokenReadout(sampling=Sampling(), branches=(1, 2)),
        TokenReadout(sampling=Sampling(temperature=0.5, top_k=7, top_p=0.9, seed=1), place=2),
    ]

    together = choose(reads, hidden, weight)

    alone = [choose([read], hidden[n : n + 1], weight)[0] for n, read in enumerate(reads)]
    assert [ids for ids, _ in together] == [ids for ids, _ in alone]
    assert [len(ids) for ids, _ in together] == [3, 2, 1]
    for (_, got), (_, wanted) in zip(together, alone, strict=True):
        assert got == pytest.approx(wanted, abs=1e-5)


def test_the_cap_of_the_logits_is_applied(hidden: Tensor, weight: Tensor) -> None:
    ((_, log_probs),) = choose([TokenReadout(sampling=Sampling())], hidden[:1], weight, 2.0)

    logits = 2.0 * torch.tanh(hidden[:1].double() @ weight.double().T / 2.0)
    assert log_probs == pytest.approx([logits.log_softmax(-1).max().item()], abs=1e-4)


def test_of_equals_the_lowest_id_is_greedy() -> None:
    assert chosen([0.0, 3.0, 3.0, 1.0], 5) == {1: 5}


def test_sampling_follows_the_probabilities_at_its_temperature() -> None:
    logits = [math.log(share) * 2 for share in (0.5, 0.3, 0.2)]

    found = chosen(logits, 20_000, temperature=2.0)

    for token, share in enumerate((0.5, 0.3, 0.2)):
        assert found[token] / 20_000 == pytest.approx(share, abs=0.02)  # five standard deviations


def test_top_k_leaves_the_most_probable() -> None:
    found = chosen([2.0, 0.0, 1.0, 3.0], 2000, temperature=1.0, top_k=2)

    assert set(found) == {0, 3}
    assert found[3] / 2000 == pytest.approx(1 / (1 + math.exp(-1)), abs=0.06)


@pytest.mark.parametrize(("top_p", "left"), [(0.4, {1}), (0.5, {1}), (0.51, {1, 3}), (0.81, {0, 1, 3}), (1e-9, {1})])
def test_top_p_leaves_the_fewest_that_reach_it(top_p: float, left: set[int]) -> None:
    logits = [math.log(share) for share in (0.12, 0.5, 0.08, 0.3)]

    assert set(chosen(logits, 2000, temperature=1.0, top_p=top_p)) == left


def test_top_p_counts_within_top_k() -> None:
    logits = [math.log(share) for share in (0.1, 0.5, 0.1, 0.3)]

    # of the two that are left, the first has 5/8
    assert set(chosen(logits, 500, temperature=1.0, top_k=2, top_p=0.6)) == {1}


def test_a_token_without_a_share_is_never_drawn() -> None:
    assert set(chosen([-1e4, 0.0, -1e4, 0.0, -1e4], 2000, temperature=1.0)) == {1, 3}


def test_log_probabilities_are_those_at_temperature_1() -> None:
    read = TokenReadout(sampling=Sampling(temperature=0.1, top_k=1, seed=3))

    ((ids, log_probs),) = choose([read], torch.ones(1, 1), torch.tensor([[1.0], [2.0]]))

    assert ids == [1]
    assert log_probs == pytest.approx([-math.log1p(math.exp(-1))])


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_no_finite_log_probability(number: float) -> None:
    weight = torch.tensor([[1.0], [number], [0.0]])
    for temperature in (0.0, 1.0):
        read = TokenReadout(sampling=Sampling(temperature=temperature))
        ((_, log_probs),) = choose([read], torch.ones(1, 1), weight)
        assert not math.isfinite(log_probs[0])


def test_draws_are_even_and_hang_on_each_of_their_arguments() -> None:
    draws = [
        draw_bits(seed, branch, place) / 2**53
        for seed in (0, 1, 2**63 - 1)
        for branch in range(30)
        for place in range(64)
    ]

    assert len(set(draws)) == len(draws)
    assert min(draws) >= 0.0
    assert max(draws) < 1.0
    tenths = Counter(int(number * 10) for number in draws)
    assert all(abs(tenths[tenth] - len(draws) / 10) < 100 for tenth in range(10))  # four standard deviations
