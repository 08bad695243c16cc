"""Turns hidden states into outcomes: label logits, log-probabilities of a target, chosen tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

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
    Readout,
    TokenIds,
    TokenOutcome,
    TokenReadout,
    Unscored,
)
from engine.sequence import RowState
from engine.token_choice import choose_tokens, draws_for
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Questions:
    """What a step reads: rows by their readout, and what a device needs to answer them.

    Args:
        labels: Groups of rows with the same number of labels.
        summed: Read rows whose log-sum-exp over the vocabulary a readout needs, ascending.
        ids: ``[n, C]`` int64 for each group of ``labels`` and then for ``targets``: whose logits are wanted.
        draws: Of ``tokens``, see :func:`engine.token_choice.draws_for`.
        rows: Read rows that ``summed``, each of ``ids`` and ``tokens`` are asked of, where there are such; None for all
            of them in their order.
    """

    labels: Sequence[Sequence[RowReads]]
    targets: Sequence[RowReads]
    tokens: Sequence[RowReads]
    summed: Sequence[int]
    ids: Sequence[Tensor]
    draws: Tensor | None
    rows: Sequence[Tensor | None]


def ask(reads: Sequence[RowReads], *, num_rows: int, device: torch.device) -> Questions:
    """Questions for rows of a step that reads ``num_rows`` in all, taken to the device without a wait."""
    by_kind: defaultdict[type[Readout], list[RowReads]] = defaultdict(list)
    for read in reads:
        by_kind[type(read.row.state.row.readout)].append(read)
    labels, targets, tokens = _by_count(by_kind[LabelReadout]), by_kind[LikelihoodReadout], by_kind[TokenReadout]
    ids = [np.array([_label_readout(read).label_ids for read in group], dtype=np.int64) for group in labels]
    places = [[read.places[-1] for read in group] for group in labels]
    summed = {read.places[-1] for read in by_kind[LabelReadout] if _label_readout(read).log_sum_exp}
    if targets:
        ids.append(np.concatenate([_target_ids(read) for read in targets], dtype=np.int64).reshape(-1, 1))
        places.append([place for read in targets for place in read.places])
        summed.update(places[-1])
    draws = []
    if tokens:
        draws.append(draws_for([_token_readout(read) for read in tokens]))
        places.append([read.places[-1] for read in tokens])
    if summed:
        places.insert(0, sorted(summed))
    whole = list(range(num_rows))
    chosen = [np.array(some, dtype=np.int64) for some in places if some != whole]
    columns = iter(to_device([*ids, *draws, *chosen], device))
    return Questions(
        labels=labels,
        targets=targets,
        tokens=tokens,
        summed=sorted(summed),
        ids=list(islice(columns, len(ids))),
        draws=next(columns) if draws else None,
        rows=[None if some == whole else next(columns) for some in places],
    )


def read_out(questions: Questions, hidden: Tensor, head: LmHead, kernels: KernelSet) -> None:
    """Record what the step read: log-probabilities so far, and an outcome for every finished row.

    A row is finished when its last position was read. All answers are copied back at once: that is
    the only time in a step that the host waits for the device.

    Args:
        hidden: ``[R, d]`` float32, see :meth:`engine.model.Decoder.forward`.
    """
    if not questions.rows:
        return
    numbers = iter(_answer(questions, hidden, head, kernels))
    sums = dict(zip(questions.summed, islice(numbers, len(questions.summed)), strict=True))
    for group in questions.labels:
        _take_labels(group, sums, numbers)
    _take_targets(questions.targets, sums, numbers)
    _take_tokens(questions.tokens, numbers)


def _by_count(reads: Sequence[RowReads]) -> list[list[RowReads]]:
    """Groups of rows with the same number of labels."""
    groups: defaultdict[int, list[RowReads]] = defaultdict(list)
    for read in reads:
        groups[len(_label_readout(read).label_ids)].append(read)
    return list(groups.values())


def _target_ids(read: RowReads) -> TokenIds:
    """The tokens of a target whose log-probabilities this step reads."""
    done = len(read.row.state.log_probs)
    return _likelihood_readout(read).target_ids[done : done + len(read.places)]


def _answer(questions: Questions, hidden: Tensor, head: LmHead, kernels: KernelSet) -> list[float]:
    """End to end: log-sum-exps; logits of each of ``ids``, row by row; chosen tokens, and their log-probabilities."""
    rows = iter([hidden if some is None else hidden.index_select(0, some) for some in questions.rows])
    found = [kernels.log_sum_exp(next(rows), head.weight, head.soft_cap)] if questions.summed else []
    found += [kernels.label_logits(next(rows), head.weight, ids, head.soft_cap).flatten() for ids in questions.ids]
    if questions.draws is not None:
        readouts = [_token_readout(read) for read in questions.tokens]
        found += choose_tokens(readouts, questions.draws, next(rows), head.weight, head.soft_cap, kernels)
    return _to_host(found)


def _to_host(parts: Sequence[Tensor]) -> list[float]:
    """All numbers end to end, with one copy that the host waits for; float64 holds ids of tokens as well."""
    numbers = parts[0] if len(parts) == 1 else torch.cat([part.double() for part in parts])
    found: list[float] = numbers.cpu().tolist()
    return found


def _take_labels(reads: Sequence[RowReads], sums: Mapping[int, float], numbers: Iterator[float]) -> None:
    for read in reads:
        readout = _label_readout(read)
        logits = tuple(islice(numbers, len(readout.label_ids)))
        log_sum_exp = sums[read.places[-1]] if readout.log_sum_exp else None
        outcome = LabelOutcome(logits=logits, log_sum_exp=log_sum_exp)
        _finish(read.row.state, outcome, logits if log_sum_exp is None else (*logits, log_sum_exp))


def _take_targets(reads: Sequence[RowReads], sums: Mapping[int, float], numbers: Iterator[float]) -> None:
    for read in reads:
        state = read.row.state
        state.log_probs += [next(numbers) - sums[place] for place in read.places]
        state.first_unread = read.row.end
        if read.row.end == len(state.row.tokens):
            _finish(state, LikelihoodOutcome(log_probs=tuple(state.log_probs)), state.log_probs)


def _take_tokens(reads: Sequence[RowReads], numbers: Iterator[float]) -> None:
    branches = [len(_token_readout(read).branches) for read in reads]
    ids = iter([int(number) for number in islice(numbers, sum(branches))])
    for read, count in zip(reads, branches, strict=True):
        outcome = TokenOutcome(token_ids=tuple(islice(ids, count)), log_probs=tuple(islice(numbers, count)))
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
