"""Turns hidden states into outcomes: label logits, log-probabilities of a target, chosen tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import RowReads, SlotArray, to_device
from engine.records import (
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    LikelihoodReadout,
    Outcome,
    TokenIds,
    TokenOutcome,
    TokenReadout,
    Unscored,
)
from engine.sequence import RowState
from engine.token_choice import choose_tokens, draws_for
from kernels.api import KernelSet

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LmHead:
    """What turns hidden states into logits.

    Args:
        weight: ``[V, d]``.
        soft_cap: Logits become ``soft_cap * tanh(logits / soft_cap)``.
    """

    weight: Tensor
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """Logits that are wanted: of ``ids[i]``, as many for every ``i``, at read row ``places[i]``."""

    reads: Sequence[RowReads]
    places: SlotArray
    ids: SlotArray


def read_out(reads: Sequence[RowReads], hidden: Tensor, head: LmHead, kernels: KernelSet) -> None:
    """Record what the step read: log-probabilities so far, and an outcome for every finished row.

    A row is finished when its last position was read. Everything is asked of the device at once
    and copied back at once: that is the only time in a step that the host waits for it.

    Args:
        hidden: ``[R, d]`` float32, see :meth:`engine.model.Decoder.forward`.
    """
    if not reads:
        return
    labels = [read for read in reads if isinstance(read.row.state.row.readout, LabelReadout)]
    targets = [read for read in reads if isinstance(read.row.state.row.readout, LikelihoodReadout)]
    tokens = [read for read in reads if isinstance(read.row.state.row.readout, TokenReadout)]
    questions = [*_ask_labels(labels), *([_ask_targets(targets)] if targets else [])]
    summed = _summed_places(labels, [question for question in questions if question.reads is targets])
    sums, answers, chosen = _answer(summed, questions, tokens, hidden, head, kernels)
    for question, logits in zip(questions, answers, strict=True):
        if question.reads is targets:
            with np.errstate(invalid="ignore"):  # a difference of infinities ends as any other number that is none
                _take_targets(question, logits[:, 0] - sums[np.searchsorted(summed, question.places)])
        else:
            _take_labels(question, dict(zip(summed.tolist(), sums.tolist(), strict=True)), logits)
    _take_tokens(tokens, chosen)


def _summed_places(labels: Sequence[RowReads], targets: Sequence[_Question]) -> SlotArray:
    """Read rows whose log-sum-exp over the vocabulary a readout needs, ascending."""
    asked = {read.places[-1] for read in labels if _label_readout(read).log_sum_exp}
    places = np.array(sorted(asked), dtype=np.int64)
    return np.unique(np.concatenate([places, *[question.places for question in targets]])) if targets else places


def _ask_labels(reads: Sequence[RowReads]) -> list[_Question]:
    """One question for all rows with the same number of labels."""
    by_count: defaultdict[int, list[RowReads]] = defaultdict(list)
    for read in reads:
        by_count[len(_label_readout(read).label_ids)].append(read)
    return [
        _Question(
            reads=group,
            places=np.array([read.places[-1] for read in group], dtype=np.int64),
            ids=np.array([_label_readout(read).label_ids for read in group], dtype=np.int64),
        )
        for group in by_count.values()
    ]


def _ask_targets(reads: Sequence[RowReads]) -> _Question:
    places: list[int] = []
    ids: list[TokenIds] = []
    for read in reads:
        done = len(read.row.state.log_probs)
        places += read.places
        ids.append(_likelihood_readout(read).target_ids[done : done + len(read.places)])
    return _Question(
        reads=reads,
        places=np.array(places, dtype=np.int64),
        ids=np.concatenate(ids).astype(np.int64).reshape(-1, 1),
    )


def _answer(
    summed: SlotArray,
    questions: Sequence[_Question],
    tokens: Sequence[RowReads],
    hidden: Tensor,
    head: LmHead,
    kernels: KernelSet,
) -> tuple[_Numbers, list[_Numbers], _Numbers]:
    """Log-sum-exps at ``summed``; logits of each question, row by row; chosen tokens above their log-probabilities."""
    readouts = [_token_readout(read) for read in tokens]
    asked = [summed, *(question.places for question in questions), *(question.ids.ravel() for question in questions)]
    last = np.array([read.places[-1] for read in tokens], dtype=np.int64)
    sums_at, *rest, tokens_at, draws = to_device([*asked, last, draws_for(readouts)], hidden.device)
    found = [kernels.log_sum_exp(hidden[sums_at], head.weight, head.soft_cap)] if len(summed) else []
    for question, places, ids in zip(questions, rest[: len(questions)], rest[len(questions) :], strict=True):
        columns = ids.view(question.ids.shape)
        found.append(kernels.label_logits(hidden[places], head.weight, columns, head.soft_cap).flatten())
    if tokens:
        found += choose_tokens(readouts, draws, hidden[tokens_at], head.weight, head.soft_cap, kernels)
    numbers = _to_host(found)
    ends = [*accumulate([question.ids.size for question in questions], initial=len(summed))]
    answers = [
        numbers[low:high].reshape(question.ids.shape)
        for question, (low, high) in zip(questions, pairwise(ends), strict=True)
    ]
    return numbers[: len(summed)], answers, numbers[ends[-1] :].reshape(2, -1)


def _to_host(parts: Sequence[Tensor]) -> _Numbers:
    """All numbers end to end, with one copy that the host waits for; float64 holds ids of tokens as well."""
    numbers = parts[0] if len(parts) == 1 else torch.cat([part.double() for part in parts])
    return numbers.cpu().double().numpy()


def _take_labels(question: _Question, denominators: dict[int, float], logits: _Numbers) -> None:
    for read, row_logits in zip(question.reads, logits.tolist(), strict=True):
        log_sum_exp = denominators[read.places[-1]] if _label_readout(read).log_sum_exp else None
        outcome = LabelOutcome(logits=tuple(row_logits), log_sum_exp=log_sum_exp)
        _finish(read.row.state, outcome, [*row_logits, log_sum_exp or 0.0])


def _take_targets(question: _Question, log_probs: _Numbers) -> None:
    left = iter(log_probs.tolist())
    for read in question.reads:
        state = read.row.state
        state.log_probs += islice(left, len(read.places))
        state.first_unread = read.row.end
        if read.row.end == len(state.row.tokens):
            _finish(state, LikelihoodOutcome(log_probs=tuple(state.log_probs)), state.log_probs)


def _take_tokens(reads: Sequence[RowReads], chosen: _Numbers) -> None:
    ids, log_probs = iter(chosen[0].astype(np.int64).tolist()), iter(chosen[1].tolist())
    for read in reads:
        branches = len(_token_readout(read).branches)
        outcome = TokenOutcome(token_ids=tuple(islice(ids, branches)), log_probs=tuple(islice(log_probs, branches)))
        _finish(read.row.state, outcome, outcome.log_probs)


def _finish(state: RowState, outcome: Outcome, numbers: Sequence[float]) -> None:
    # the sum is finite if all are: float32 numbers do not add up to more than a float can hold
    finite = math.isfinite(sum(numbers))
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
