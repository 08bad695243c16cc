"""An engine that replays its steps, on the Triton set: the scores of the judge, step by step.

The recorder is a tape (tests/helpers/tape.py): it repeats operations and launches with what they were
called with, so nothing that a step decides on the host reaches a replay but through its memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

import engine.device
import engine.replay
import engine.runner
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.records import Row, ScoreResult
from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from kernels.triton import TritonKernels
from tests.helpers.families import tiny_model
from tests.helpers.plain_model import numbers
from tests.helpers.tape import Tape
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

VOCABULARY = 97
SIZE = 16


def checkpoint_of(family: str | None, folder: Path) -> Checkpoint:
    if family is None:
        return tiny_checkpoint(tiny_config(num_heads=4, num_kv_heads=2))
    # as few layers as have windows below and after one that has none
    tiny_model(family, num_hidden_layers=3, sliding_window_pattern=2).save_pretrained(folder)
    return load_checkpoint(folder, torch.float32)


def batches() -> list[list[Row]]:
    """A document; questions on it, of more and of fewer tokens in turn; rows on one that is kept; a row alone."""
    rng = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in rng.integers(VOCABULARY, size=count)]

    document = tokens(35)
    questions = [
        [make_row([*document, *tokens(length)], keep=keep) for length in lengths]
        for keep, lengths in ((0, (4, 7, 5)), (0, (1,)), (37, (6, 2)))
    ]
    kept = questions[-1][0].tokens[:37].tolist()
    rows = [make_row([*kept, *tokens(length)]) for length in (1, 2)]
    return [[make_row(document, keep=35)], *questions, rows, [make_row([*document[:20], *tokens(12)], target=4)]]


def scores(
    checkpoint: Checkpoint, kernels: KernelSet, kv_dtype: Literal["auto", "int8"], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[ScoreResult], tuple[int, ...]]:
    """Results of all batches, and the sizes of steps that were replayed."""

    def load(_name: str, _device: torch.device) -> KernelSet:
        return kernels

    monkeypatch.setattr(engine.device, "load_kernels", load)
    with running(tiny_engine(checkpoint, num_blocks=64, kv_dtype=kv_dtype)) as started:
        return [score(started, rows) for rows in batches()], started.info.replayed_tokens


@pytest.mark.parametrize(("family", "kv_dtype"), [(None, "int8"), ("gemma3", "auto")])
def test_scores_are_those_of_the_judge(
    family: str | None, kv_dtype: Literal["auto", "int8"], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tape = Tape()
    monkeypatch.setattr(engine.runner, "find_recorder", lambda _config, _device: tape)
    monkeypatch.setattr(engine.replay, "SIZES", (SIZE,))
    checkpoint = checkpoint_of(family, tmp_path)
    judged, none = scores(checkpoint, ReferenceKernels(), kv_dtype, monkeypatch)
    found, sizes = scores(checkpoint, TritonKernels("cpu", split_below=6), kv_dtype, monkeypatch)

    assert (none, sizes) == ((), (SIZE,))
    # all batches but the document, after those that tried the recording
    assert tape.num_replays == 4 + len(found) - 1
    for ours, theirs in zip(found, judged, strict=True):
        assert ours.stats.computed_tokens == theirs.stats.computed_tokens
        for row, expected in zip(ours.rows, theirs.rows, strict=True):
            np.testing.assert_allclose(numbers(row.outcome), numbers(expected.outcome), atol=1e-3, rtol=1e-4)
