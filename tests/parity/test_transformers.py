"""Random small models of every head shape: the logits of the transformers library, from either file format."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from engine.checkpoint import load_checkpoint
from engine.config import EngineConfig
from engine.records import LabelOutcome, LabelReadout, LikelihoodOutcome, LikelihoodReadout, Row
from engine.runner import start_engine
from tests.helpers.llama_files import HEAD_SHAPES, head_shape, save_folder, tiny_llama, write_gguf
from tests.helpers.tiny import Log, running, score, tiny_engine

TOLERANCE = 1e-3


def trained_like(**settings: Any) -> LlamaForCausalLM:
    """A random model with weights scaled so that activations neither grow nor vanish from layer to layer."""
    model = tiny_llama(**settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.mul_(0.1).add_(1)
            elif "embed" not in name:
                parameter.mul_(parameter.shape[1] ** -0.5)
    return model


def write_folder(model: LlamaForCausalLM, folder: Path) -> Path:
    return save_folder(model, folder)


def write_file(model: LlamaForCausalLM, folder: Path) -> Path:
    return write_gguf(model, folder / "model.gguf")


def rows_for(prompts: list[list[int]], vocabulary: int) -> list[Row]:
    """For each prompt, all logits of its last position, and the log-probability of every token after its first."""
    rows = []
    for ids in prompts:
        tokens = np.array(ids, dtype=np.int32)
        target = np.array([*ids[1:], 0], dtype=np.int32)
        rows.append(Row(tokens=tokens, readout=LabelReadout(label_ids=tuple(range(vocabulary))), keep_tokens=len(ids)))
        rows.append(Row(tokens=tokens, readout=LikelihoodReadout(target_ids=target), keep_tokens=0))
    return rows


@pytest.mark.parametrize("write", [write_folder, write_file])
@pytest.mark.parametrize("shape", HEAD_SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_log_probabilities_agree(
    tmp_path: Path,
    write: Callable[[LlamaForCausalLM, Path], Path],
    shape: tuple[int, int, int, int],
    *,
    tied: bool,
) -> None:
    model = trained_like(**head_shape(shape), num_hidden_layers=3, tie_word_embeddings=tied)
    vocabulary = model.config.vocab_size
    rng = np.random.default_rng(0)
    prefix = rng.integers(vocabulary, size=30).tolist()
    prompts = [
        [*prefix[:cut], *rng.integers(vocabulary, size=size).tolist()] for cut, size in [(30, 40), (21, 5), (0, 1)]
    ]

    checkpoint = load_checkpoint(write(model, tmp_path), torch.float32)
    with running(tiny_engine(checkpoint, step_tokens=48)) as engine:
        cold = score(engine, rows_for(prompts, vocabulary))
        warm = score(engine, rows_for(prompts, vocabulary))

    assert warm.stats.computed_tokens < cold.stats.computed_tokens + sum(map(len, prompts))
    for result in (cold, warm):
        for place, ids in enumerate(prompts):
            with torch.inference_mode():
                logits = model(torch.tensor([ids])).logits[0]
            labels, likelihood = result.rows[2 * place].outcome, result.rows[2 * place + 1].outcome
            assert isinstance(labels, LabelOutcome)
            assert isinstance(likelihood, LikelihoodOutcome)
            assert (torch.tensor(labels.logits) - logits[-1]).abs().max() <= TOLERANCE
            log_probs = logits.log_softmax(-1).gather(1, torch.tensor([*ids[1:], 0])[:, None]).flatten()
            assert (torch.tensor(likelihood.log_probs) - log_probs).abs().max() <= TOLERANCE


def test_head_shapes_cover_the_ratios_and_sizes_that_models_have() -> None:
    assert {heads // kv_heads for heads, kv_heads, _, _ in HEAD_SHAPES} == {1, 3, 4, 7}
    assert {width for _, _, width, _ in HEAD_SHAPES} == {32, 64, 80, 128}
    assert any(width != hidden // heads for heads, _, width, hidden in HEAD_SHAPES)


def test_an_engine_starts_from_a_folder_in_the_type_that_was_asked_for(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    model = trained_like()
    config = EngineConfig(pool_bytes=1 << 20, dtype="bfloat16", num_threads=1)
    row = Row(tokens=np.array([1, 2, 3], dtype=np.int32), readout=LabelReadout(label_ids=(4, 5)), keep_tokens=0)

    with running(start_engine(save_folder(model, tmp_path / "small"), config, Log())) as engine:
        outcome = score(engine, [row]).rows[0].outcome

    torch.set_num_threads(threads)
    gc.unfreeze()
    assert (engine.info.model, engine.info.dtype, engine.info.vocab_size) == ("small", "bfloat16", 160)
    assert isinstance(outcome, LabelOutcome)
    with torch.inference_mode():
        logits = model(torch.tensor([[1, 2, 3]])).logits[0, -1, [4, 5]]
    assert outcome.logits == pytest.approx(logits.tolist(), abs=0.1)
