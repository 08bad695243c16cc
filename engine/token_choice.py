"""Chooses tokens from hidden states: the most probable one, or one that is drawn by the seed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.records import Sampling, TokenReadout
from kernels.api import KernelSet

_MOST_LOGITS = 2**24  # held at one time: 64 MiB in float32


def choose_tokens(
    readouts: Sequence[TokenReadout], hidden: Tensor, weight: Tensor, soft_cap: float | None, kernels: KernelSet
) -> Iterator[tuple[list[int], list[float]]]:
    """For each row the token of each of its branches, and their natural log-probabilities at temperature 1.

    Log-probabilities of a row whose logits are not finite are not finite either.

    Args:
        hidden: ``[R, d]`` float32, a row for each readout.
        weight: ``[V, d]`` of the LM head, any float dtype.
        soft_cap: Logits become ``soft_cap * tanh(logits / soft_cap)``.
    """
    at_once = max(1, _MOST_LOGITS // len(weight))
    for start in range(0, len(readouts), at_once):
        logits = kernels.vocabulary_logits(hidden[start : start + at_once], weight, soft_cap)
        denominators = torch.logsumexp(logits, dim=-1)
        for read, row, denominator in zip(readouts[start : start + at_once], logits, denominators, strict=True):
            ids = _choose(read, row) if bool(denominator.isfinite()) else [0] * len(read.branches)
            yield ids, (row[ids] - denominator).tolist()


def _choose(read: TokenReadout, logits: Tensor) -> list[int]:
    """A token for each branch of one row; ``logits`` is ``[V]``."""
    if read.sampling.temperature == 0.0:
        return [int(logits.argmax())] * len(read.branches)
    shares = _shares(logits, read.sampling).cumsum(0)
    draws = [draw(read.sampling.seed, branch, read.place) for branch in read.branches]
    wanted = torch.tensor(draws, dtype=torch.float64, device=logits.device) * shares[-1]
    # the first token whose sum is above what was drawn; a token of no share is never that
    found = torch.searchsorted(shares, wanted, right=True)
    return found.tolist()


def _shares(logits: Tensor, sampling: Sampling) -> Tensor:
    """``[V]`` float64 in the order of ids, 0 for what ``top_k`` and ``top_p`` leave out.

    What is left is found by a threshold: the order of tokens that are almost equally probable,
    which hangs on rounding, plays no part.
    """
    scaled = (logits.double() - logits.max()) / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(sampling.top_k).values[-1], -torch.inf)
    shares = scaled.softmax(0)
    if sampling.top_p < 1.0:
        falling = shares.sort(descending=True).values
        before = falling.cumsum(0) - falling
        num_kept = max(1, int((before < sampling.top_p).sum()))
        shares = shares.masked_fill(shares < falling[num_kept - 1], 0.0)
    return shares


def draw(seed: int, branch: int, place: int) -> float:
    """A number in ``[0, 1)`` that hangs on nothing but its arguments."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, branch, place), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
