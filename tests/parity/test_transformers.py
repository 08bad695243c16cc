"""Random small models of every family and shape: the logits of the transformers library, from either file format."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from engine.checkpoint import load_checkpoint
from engine.config import EngineConfig
from engine.records import LabelOutcome, LabelReadout, LikelihoodOutcome, LikelihoodReadout, Row
from engine.runner import start_engine
from tests.helpers.families import FAMILIES, num_text_parameters, tiny_gemma3_with_images, tiny_model
from tests.helpers.llama_files import HEAD_SHAPES, head_shape, save_folder, tiny_llama, write_gguf
from tests.helpers.tiny import Log, running, score, tiny_engine

TOLERANCE = 1e-3
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROTARY_SCALINGS = [
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3,
    _YARN,
    {**_YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "beta_fast": 8, "beta_slow": 2},
    {**_YARN, "attention_factor": 1.3},
]
# transformers looks for this one beside the records of kinds of layers, not in them
UNTRUNCATED_YARN = {**_YARN, "truncate": False}


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


def write_folder(model: PreTrainedModel, folder: Path) -> Path:
    return save_folder(model, folder)


def write_file(model: PreTrainedModel, folder: Path) -> Path:
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
    write: Callable[[PreTrainedModel, Path], Path],
    shape: tuple[int, int, int, int],
    *,
    tied: bool,
) -> None:
    model = trained_like(**head_shape(shape), num_hidden_layers=3, tie_word_embeddings=tied)

    assert_agreement(model, write(model, tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_agrees_through_a_folder(tmp_path: Path, family: str) -> None:
    model = tiny_model(family)

    assert_agreement(model, write_folder(model, tmp_path))


@pytest.mark.parametrize("tied", [True, False])
def test_the_text_part_of_a_gemma_3_with_images_agrees(tmp_path: Path, *, tied: bool) -> None:
    model = tiny_gemma3_with_images(tie_word_embeddings=tied)

    assert_agreement(model, write_folder(model, tmp_path))


@pytest.mark.parametrize(
    ("family", "settings", "fields"),
    [
        ("llama", {"attention_bias": False}, {}),
        ("mistral", {"sliding_window": None}, {}),
        ("qwen2", {}, {}),
        ("qwen3", {}, {}),
        ("gemma", {}, {}),
        ("gemma2", {"query_pre_attn_scalar": 16, "head_dim": 16}, {}),
        ("gemma3", {}, {"gemma3.attention.sliding_window_pattern": 3}),
        ("gemma3", {"sliding_window_pattern": 6, "num_hidden_layers": 7}, {}),
        ("phi3", {}, {}),
    ],
)
def test_every_family_agrees_through_gguf(
    tmp_path: Path, family: str, settings: dict[str, Any], fields: dict[str, float | str]
) -> None:
    model = tiny_model(family, **settings)

    assert_agreement(model, write_gguf(model, tmp_path / "model.gguf", fields=fields))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "phi3"])
@pytest.mark.parametrize("scaling", ROTARY_SCALINGS, ids=lambda scaling: "-".join(map(str, scaling.values())))
def test_every_rotary_scaling_agrees(tmp_path: Path, family: str, scaling: dict[str, Any]) -> None:
    """Gemma 3 scales the layers that see everything and leaves those with a window alone."""
    parameters: dict[str, Any] = {"rope_theta": 500.0, **scaling}
    if family == "gemma3":
        parameters = {"full_attention": parameters, "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}
    model = tiny_model(family, rope_parameters=parameters)

    assert_agreement(model, write_folder(model, tmp_path))


def test_yarn_between_whole_pairs_agrees(tmp_path: Path) -> None:
    model = tiny_model("llama", rope_parameters={"rope_theta": 500.0, **UNTRUNCATED_YARN})

    assert_agreement(model, write_folder(model, tmp_path))


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling_agrees_through_gguf(tmp_path: Path, kind: str) -> None:
    scaling = {"rope_theta": 500.0, "rope_type": kind, "factor": 4.0}
    fields: dict[str, float | str] = {"qwen3.rope.scaling.type": kind, "qwen3.rope.scaling.factor": 4.0}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = 64
        fields["qwen3.rope.scaling.original_context_length"] = 64
    model = tiny_model("qwen3", rope_parameters=scaling)

    assert_agreement(model, write_gguf(model, tmp_path / "model.gguf", fields=fields))


def test_divisors_of_rotary_frequencies_in_a_gguf_file_agree(tmp_path: Path) -> None:
    model = tiny_model("llama", attention_bias=False, rope_parameters={"rope_theta": 500.0, **LLAMA3})
    frequencies = model.model.rotary_emb.inv_freq
    divisors = (500.0 ** -(torch.arange(0, 16, 2) / 16) / frequencies).numpy()
    extra = {"rope_freqs.weight": (divisors, gguf.GGMLQuantizationType.F32)}

    assert divisors.max() == pytest.approx(4)
    assert_agreement(model, write_gguf(model, tmp_path / "model.gguf", extra=extra))


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_every_family_is_at_least_as_near_to_float32_as_transformers_is(
    tmp_path: Path, family: str
) -> None:
    model = tiny_model(family)
    prompts = np.random.default_rng(0).integers(model.config.vocab_size, size=(8, 40))
    checkpoint = load_checkpoint(write_folder(model, tmp_path), torch.bfloat16)
    with torch.inference_mode():
        exact = model(torch.from_numpy(prompts)).logits[:, -1]
        narrow: Any = model
        theirs = narrow.to(torch.bfloat16)(torch.from_numpy(prompts)).logits[:, -1]

    with running(tiny_engine(checkpoint)) as engine:
        rows = rows_for(prompts.tolist(), model.config.vocab_size)[::2]
        outcomes = [row.outcome for row in score(engine, rows).rows]

    ours = torch.tensor([outcome.logits for outcome in outcomes if isinstance(outcome, LabelOutcome)])
    assert 0 < (ours - exact).abs().mean() <= (theirs - exact).abs().mean()


def assert_agreement(model: PreTrainedModel, path: Path) -> None:
    """All logits of the last position, and the log-probability of every token, cold and warm, in chunks."""
    vocabulary = model.config.get_text_config().vocab_size
    rng = np.random.default_rng(0)
    prefix = rng.integers(vocabulary, size=30).tolist()
    prompts = [
        [*prefix[:cut], *rng.integers(vocabulary, size=size).tolist()] for cut, size in [(30, 40), (21, 5), (0, 1)]
    ]

    checkpoint = load_checkpoint(path, torch.float32)
    assert checkpoint.config.num_parameters == num_text_parameters(model)
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
