"""The whole engine on the Triton set: the same scores and the same counts as on the judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import engine.device
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.records import LabelOutcome, LikelihoodOutcome, Row, ScoreResult
from engine.runner import EngineThread
from kernels.api import KernelSet
from kernels.reference import ReferenceKernels
from kernels.triton import TritonKernels
from tests.helpers.families import tiny_model
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

VOCABULARY = 97


def engine_on(
    kernels: KernelSet, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, *, step_tokens: int
) -> EngineThread:
    def load(_name: str, _device: torch.device) -> KernelSet:
        return kernels

    monkeypatch.setattr(engine.device, "load_kernels", load)
    return tiny_engine(checkpoint, step_tokens=step_tokens)


def batches() -> list[list[Row]]:
    """A cold batch below one prefix, the same warm with new rows, and targets of a few tokens."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(VOCABULARY, size=21).tolist()
    tails = [rng.integers(VOCABULARY, size=n).tolist() for n in (1, 7, 3, 12)]
    cold = [make_row([*prefix, *tail], keep=len(prefix)) for tail in tails[:3]]
    warm = [make_row([*prefix, *tail]) for tail in tails]
    targets = [make_row([*prefix[:15], *tails[3]], target=4), make_row(tails[1])]
    return [cold, warm, targets]


def numbers(result: ScoreResult) -> list[float]:
    found: list[float] = []
    for row in result.rows:
        match row.outcome:
            case LabelOutcome(logits=logits, log_sum_exp=log_sum_exp):
                found += [*logits, log_sum_exp or 0.0]
            case LikelihoodOutcome(log_probs=log_probs):
                found += log_probs
            case unscored:
                pytest.fail(str(unscored))
    return found


def checkpoint_of(family: str | None, folder: Path) -> Checkpoint:
    if family is None:
        return tiny_checkpoint(tiny_config())
    # as few layers as have windows below and after one that has none
    layers = {"num_hidden_layers": 3, "sliding_window_pattern": 2} if family == "gemma3" else {"num_hidden_layers": 3}
    tiny_model(family, **layers).save_pretrained(folder)
    return load_checkpoint(folder, torch.float32)


@pytest.mark.parametrize(
    ("family", "step_tokens"), [(None, 16), (None, 256), ("qwen3", 256), ("gemma2", 16), ("gemma3", 256)]
)
def test_scores_agree_with_the_judge_cold_warm_and_in_chunks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str | None, step_tokens: int
) -> None:
    checkpoint = checkpoint_of(family, tmp_path)
    results = []
    for kernels in (ReferenceKernels(), TritonKernels("cpu")):
        with running(engine_on(kernels, checkpoint, monkeypatch, step_tokens=step_tokens)) as running_engine:
            results.append([score(running_engine, rows) for rows in batches()])

    for judged, ours in zip(*results, strict=True):
        assert ours.stats.computed_tokens == judged.stats.computed_tokens
        np.testing.assert_allclose(numbers(ours), numbers(judged), atol=1e-4, rtol=1e-4)
