"""Turns hidden states into outcomes: label logits, log-probabilities of a target, chosen tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from engine.batch import RowReads, to_device
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Logits that are wanted: of ``ids[i]``, as many for every ``i``, at read row ``places[i]``."""

    reads: Sequence[RowReads]
    places: list[int]
    ids: list[tuple[int, ...]]


def read_out(reads: Sequence[RowReads], hidden: Tensor, head: LmHead, kernels: KernelSet) -> None:
    """Record what the step read: log-probabilities so far, and an outcome for every finished row.

    A row is finished when its last position was read. Everything is asked of the device at once
    and copied back at once: that is the only time in a step that the host waits for it.

    Args:
        hidden: ``[R, d]`` float32, see :meth:`engine.model.Decoder.forward`.
    """
    labels = [read for read in reads if isinstance(read.row.state.row.readout, LabelReadout)]
    targets = [read for read in reads if isinstance(read.row.state.row.readout, LikelihoodReadout)]
    _read_tokens([read for read in reads if isinstance(read.row.state.row.readout, TokenReadout)], hidden, head)
    if not labels and not targets:
        return
    questions = [*_ask_labels(labels), *([_ask_targets(targets)] if targets else [])]
    summed = _summed_places(labels, targets)
    sums, answers = _answer(summed, questions, hidden, head, kernels)
    denominators = dict(zip(summed, sums, strict=True))
    for question, logits in zip(questions, answers, strict=True):
        if question.reads is targets:
            _take_targets(question, denominators, logits)
        else:
            _take_labels(question, denominators, logits)


def _summed_places(labels: Sequence[RowReads], targets: Sequence[RowReads]) -> list[int]:
    """Read rows whose log-sum-exp over the vocabulary a readout needs."""
    wanted = {place for read in targets for place in read.places}
    wanted |= {read.places[-1] for read in labels if _label_readout(read).log_sum_exp}
    return sorted(wanted)


def _ask_labels(reads: Sequence[RowReads]) -> list[_Question]:
    """One question for all rows with the same number of labels."""
    by_count: defaultdict[int, list[RowReads]] = defaultdict(list)
    for read in reads:
        by_count[len(_label_readout(read).label_ids)].append(read)
    return [
        _Question(
            reads=group,
            places=[read.places[-1] for read in group],
            ids=[_label_readout(read).label_ids for read in group],
        )
        for group in by_count.values()
    ]


def _ask_targets(reads: Sequence[RowReads]) -> _Question:
    places: list[int] = []
    ids: list[tuple[int, ...]] = []
    for read in reads:
        target = _likelihood_readout(read).target_ids
        done = len(read.row.state.log_probs)
        places += read.places
        ids += [(token,) for token in target[done : done + len(read.places)].tolist()]
    return _Question(reads=reads, places=places, ids=ids)


def _answer(
    summed: list[int], questions: Sequence[_Question], hidden: Tensor, head: LmHead, kernels: KernelSet
) -> tuple[list[float], list[list[float]]]:
    """Log-sum-exps at ``summed``, and the logits of each question, row by row."""
    asked = [summed, *(q.places for q in questions), *(list(chain.from_iterable(q.ids)) for q in questions)]
    sums_at, *rest = to_device([np.array(numbers, dtype=np.int64) for numbers in asked], hidden.device)
    found = [kernels.log_sum_exp(hidden[sums_at], head.weight, head.soft_cap)] if summed else []
    for places, ids in zip(rest[: len(questions)], rest[len(questions) :], strict=True):
        columns = ids.view(len(places), -1)
        found.append(kernels.label_logits(hidden[places], head.weight, columns, head.soft_cap).flatten())
    numbers = iter(torch.cat(found).tolist())
    return list(islice(numbers, len(summed))), [list(islice(numbers, len(q.places) * len(q.ids[0]))) for q in questions]


def _take_labels(question: _Question, denominators: dict[int, float], logits: list[float]) -> None:
    count = len(question.ids[0])
    for index, read in enumerate(question.reads):
        row_logits = logits[index * count : (index + 1) * count]
        log_sum_exp = denominators[read.places[-1]] if _label_readout(read).log_sum_exp else None
        outcome = LabelOutcome(logits=tuple(row_logits), log_sum_exp=log_sum_exp)
        _finish(read.row.state, outcome, [*row_logits, log_sum_exp or 0.0])


def _take_targets(question: _Question, denominators: dict[int, float], logits: list[float]) -> None:
    log_probs = [logit - denominators[place] for place, logit in zip(question.places, logits, strict=True)]
    first = 0
    for read in question.reads:
        state = read.row.state
        state.log_probs += log_probs[first : first + len(read.places)]
        first += len(read.places)
        state.first_unread = read.row.end
        if read.row.end == len(state.row.tokens):
            _finish(state, LikelihoodOutcome(log_probs=tuple(state.log_probs)), state.log_probs)


def _read_tokens(reads: Sequence[RowReads], hidden: Tensor, head: LmHead) -> None:
    if not reads:
        return
    (places,) = to_device([np.array([read.places[-1] for read in reads], dtype=np.int64)], hidden.device)
    chosen = choose_tokens([_token_readout(read) for read in reads], hidden[places], head.weight, head.soft_cap)
    for read, (token_ids, log_probs) in zip(reads, chosen, strict=True):
        outcome = TokenOutcome(token_ids=tuple(token_ids), log_probs=tuple(log_probs))
        _finish(read.row.state, outcome, log_probs)


def _finish(state: RowState, outcome: Outcome, numbers: Sequence[float]) -> None:
    finite = all(math.isfinite(number) for number in numbers)
    state.outcome = outcome if finite else Unscored(reason="non_finite")


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
