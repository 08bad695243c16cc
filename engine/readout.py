"""Turns hidden states into outcomes: label logits, log-probabilities of a target, chosen tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import RowReads
from engine.records import (
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    LikelihoodReadout,
    Outcome,
    TokenOutcome,
    TokenReadout,
    Unscored,
)
from engine.sequence import RowState
from engine.token_choice import choose_tokens
from kernels.api import KernelSet


@dataclass(frozen=True, slots=True, kw_only=True)
class LmHead:
    """What turns hidden states into logits.

    Args:
        weight: ``[V, d]``.
        soft_cap: Logits become ``soft_cap * tanh(logits / soft_cap)``.
    """

    weight: Tensor
    soft_cap: float | None = None


def read_out(reads: Sequence[RowReads], hidden: Tensor, head: LmHead, kernels: KernelSet) -> None:
    """Record what the step read: log-probabilities so far, and an outcome for every finished row.

    A row is finished when its last position was read.

    Args:
        hidden: ``[R, d]`` float32, see :meth:`engine.model.Decoder.forward`.
    """
    labels = [read for read in reads if isinstance(read.row.state.row.readout, LabelReadout)]
    targets = [read for read in reads if isinstance(read.row.state.row.readout, LikelihoodReadout)]
    denominators = _denominators(labels, targets, hidden, head, kernels)
    _read_labels(labels, denominators, hidden, head, kernels)
    _read_targets(targets, denominators, hidden, head, kernels)
    _read_tokens([read for read in reads if isinstance(read.row.state.row.readout, TokenReadout)], hidden, head)


def _denominators(
    labels: Sequence[RowReads], targets: Sequence[RowReads], hidden: Tensor, head: LmHead, kernels: KernelSet
) -> dict[int, float]:
    """Log-sum-exp over the vocabulary, by read row, where a readout needs it."""
    wanted = {place for read in targets for place in read.places}
    wanted |= {read.places[-1] for read in labels if _label_readout(read).log_sum_exp}
    if not wanted:
        return {}
    places = sorted(wanted)
    sums = kernels.log_sum_exp(hidden[_index(places, hidden)], head.weight, head.soft_cap)
    return dict(zip(places, sums.tolist(), strict=True))


def _read_labels(
    reads: Sequence[RowReads], denominators: dict[int, float], hidden: Tensor, head: LmHead, kernels: KernelSet
) -> None:
    by_count: defaultdict[int, list[RowReads]] = defaultdict(list)
    for read in reads:
        by_count[len(_label_readout(read).label_ids)].append(read)
    for group in by_count.values():
        places = _index([read.places[-1] for read in group], hidden)
        ids = torch.tensor([_label_readout(read).label_ids for read in group], device=hidden.device)
        logits = kernels.label_logits(hidden[places], head.weight, ids, head.soft_cap).tolist()
        for read, row_logits in zip(group, logits, strict=True):
            log_sum_exp = denominators[read.places[-1]] if _label_readout(read).log_sum_exp else None
            outcome = LabelOutcome(logits=tuple(row_logits), log_sum_exp=log_sum_exp)
            _finish(read.row.state, outcome, [*row_logits, log_sum_exp or 0.0])


def _read_targets(
    reads: Sequence[RowReads], denominators: dict[int, float], hidden: Tensor, head: LmHead, kernels: KernelSet
) -> None:
    if not reads:
        return
    places: list[int] = []
    ids: list[int] = []
    for read in reads:
        target = _likelihood_readout(read).target_ids
        done = len(read.row.state.log_probs)
        places += read.places
        ids += target[done : done + len(read.places)].tolist()
    columns = _index(ids, hidden).unsqueeze(1)
    logits = kernels.label_logits(hidden[_index(places, hidden)], head.weight, columns, head.soft_cap)
    log_probs = [logit - denominators[place] for place, logit in zip(places, logits.flatten().tolist(), strict=True)]
    first = 0
    for read in reads:
        state = read.row.state
        state.log_probs += log_probs[first : first + len(read.places)]
        first += len(read.places)
        state.first_unread = read.row.end
        if read.row.end == len(state.row.tokens):
            _finish(state, LikelihoodOutcome(log_probs=tuple(state.log_probs)), state.log_probs)


def _read_tokens(reads: Sequence[RowReads], hidden: Tensor, head: LmHead) -> None:
    if not reads:
        return
    places = _index([read.places[-1] for read in reads], hidden)
    chosen = choose_tokens([_token_readout(read) for read in reads], hidden[places], head.weight, head.soft_cap)
    for read, (token_ids, log_probs) in zip(reads, chosen, strict=True):
        outcome = TokenOutcome(token_ids=tuple(token_ids), log_probs=tuple(log_probs))
        _finish(read.row.state, outcome, log_probs)


def _finish(state: RowState, outcome: Outcome, numbers: Sequence[float]) -> None:
    finite = all(math.isfinite(number) for number in numbers)
    state.outcome = outcome if finite else Unscored(reason="non_finite")


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=like.device)


def _label_readout(read: RowReads) -> LabelReadout:
    readout = read.row.state.row.readout
    assert isinstance(readout, LabelReadout)
    return readout


def _likelihood_readout(read: RowReads) -> LikelihoodReadout:
    readout = read.row.state.row.readout
    assert isinstance(readout, LikelihoodReadout)
    return readout


def _token_readout(read: RowReads) -> TokenReadout:
    readout = read.row.state.row.readout
    assert isinstance(readout, TokenReadout)
    return readout
