"""Chooses tokens from hidden states: the most probable one, or one that is drawn by the seed.

Nothing here waits for the device: what is chosen stays on it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.batch import SlotArray
from engine.records import Sampling, TokenReadout
from kernels.api import KernelSet

_MOST_LOGITS = 2**24  # held at one time: 64 MiB in float32
_DRAW_BITS = 53  # as many as a float64 holds


def choose_tokens(
    readouts: Sequence[TokenReadout],
    draws: Tensor,
    hidden: Tensor,
    weight: Tensor,
    soft_cap: float | None,
    kernels: KernelSet,
) -> tuple[Tensor, Tensor]:
    """The token of each branch of each row, end to end, and their natural log-probabilities at temperature 1.

    Log-probabilities of a row whose logits are not finite are not finite either.

    Args:
        draws: :func:`draws_for` the same readouts, on the device.
        hidden: ``[R, d]`` float32, a row for each readout.
        weight: ``[V, d]`` of the LM head, any float dtype.
        soft_cap: Logits become ``soft_cap * tanh(logits / soft_cap)``.

    Returns:
        ``[B]`` int64 and ``[B]`` float32, both on the device.
    """
    at_once = max(1, _MOST_LOGITS // len(weight))
    of_rows = torch.split(draws, [len(read.branches) for read in readouts])
    ids: list[Tensor] = []
    log_probs: list[Tensor] = []
    for start in range(0, len(readouts), at_once):
        some = slice(start, start + at_once)
        logits = kernels.vocabulary_logits(hidden[some], weight, soft_cap)
        denominators = torch.logsumexp(logits, dim=-1)
        for read, row_draws, row, denominator in zip(readouts[some], of_rows[some], logits, denominators, strict=True):
            chosen = torch.where(denominator.isfinite(), _choose(read, row_draws, row), 0)
            ids.append(chosen)
            log_probs.append(row.gather(0, chosen) - denominator)
    return torch.cat(ids), torch.cat(log_probs)


def draws_for(readouts: Sequence[TokenReadout]) -> SlotArray:
    """A draw for each branch of each row, end to end: whole numbers below ``2**53``."""
    return np.array(
        [draw_bits(read.sampling.seed, branch, read.place) for read in readouts for branch in read.branches],
        dtype=np.int64,
    )


def _choose(read: TokenReadout, draws: Tensor, logits: Tensor) -> Tensor:
    """A token for each branch of one row, ``[branches]``; ``logits`` is ``[V]``."""
    if read.sampling.temperature == 0.0:
        return logits.argmax().expand(len(read.branches))
    shares = _shares(logits, read.sampling).cumsum(0)
    wanted = draws.double() * 2.0**-_DRAW_BITS * shares[-1]
    # the first token whose sum is above what was drawn; a token of no share is never that
    return torch.searchsorted(shares, wanted, right=True)


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
        # the greatest has nothing before it, so one is always left
        least = falling.masked_fill(before >= sampling.top_p, torch.inf).min()
        shares = shares.masked_fill(shares < least, 0.0)
    return shares


def draw_bits(seed: int, branch: int, place: int) -> int:
    """A number below ``2**53`` that hangs on nothing but its arguments; of ``2**53``, what is drawn."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, branch, place), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _DRAW_BITS)
