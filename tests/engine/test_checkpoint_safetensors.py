from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint_files import SafetensorsFiles, find_checkpoint_files, read_model_config
from engine.checkpoint_safetensors import load_safetensors
from engine.errors import CheckpointError
from engine.weights import ModelWeights
from kernels.weights import dense
from tests.helpers.families import tiny_gemma3_with_images, tiny_model
from tests.helpers.llama_files import HEAD_SHAPES, assert_same_weights, head_shape, save_folder, tiny_llama


def load(folder: Path, dtype: torch.dtype = torch.float32) -> ModelWeights:
    files = find_checkpoint_files(folder)
    assert isinstance(files, SafetensorsFiles)
    return load_safetensors(files, read_model_config(files), dtype)


def rewrite(file: Path, changes: dict[str, Tensor | None]) -> None:
    """Replace or add tensors of a safetensors file; None takes one away."""
    tensors: dict[str, Any] = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tiny_llama(), tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return save_folder(tiny_llama(), tmp_path / "model", max_shard_size="100KB")


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize("shape", HEAD_SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_equals_the_one_that_was_saved(
    tmp_path: Path, shape: tuple[int, int, int, int], *, tied: bool
) -> None:
    model = tiny_llama(**head_shape(shape), tie_word_embeddings=tied)

    weights = load(save_folder(model, tmp_path))

    assert_same_weights(weights, model)
    assert (weights.head is weights.embedding) == tied


def test_shards_load_as_one_file_does(sharded: Path) -> None:
    assert len(shards(sharded)) > 2

    assert_same_weights(load(sharded), tiny_llama())


@pytest.mark.parametrize("stored", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_float_type_is_converted(tmp_path: Path, stored: torch.dtype, dtype: torch.dtype) -> None:
    model = tiny_llama()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(stored)

    assert_same_weights(load(save_folder(model, tmp_path), dtype), model, dtype)


def test_b031_mixed_types_are_converted_tensor_by_tensor(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    model = tiny_llama()
    narrow = model.state_dict()[name].to(torch.bfloat16)
    rewrite(folder / "model.safetensors", {name: narrow})
    model.load_state_dict(model.state_dict() | {name: narrow.float()})

    assert_same_weights(load(folder), model)


def test_b031_a_weight_beyond_the_range_of_float16_stays_finite(folder: Path) -> None:
    rewrite(folder / "model.safetensors", {"model.norm.weight": torch.full((64,), 1e5)})

    weights = load(folder, torch.bfloat16)

    assert torch.isfinite(weights.final_norm).all()
    assert weights.final_norm[0].item() == pytest.approx(1e5, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_of_gemma_are_one_more_than_what_the_file_holds_and_are_not_rounded(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    model = tiny_model("gemma3")
    stored = model.state_dict()

    weights = load(save_folder(model, tmp_path), dtype)

    assert torch.equal(weights.final_norm, stored["model.norm.weight"] + 1)
    for number, layer in enumerate(weights.layers):
        for name, norm in {
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.attention_out_norm,
            "pre_feedforward_layernorm": layer.feed_forward_norm,
            "post_feedforward_layernorm": layer.feed_forward_out_norm,
            "self_attn.q_norm": layer.query_norm,
            "self_attn.k_norm": layer.key_norm,
        }.items():
            assert norm is not None
            assert torch.equal(norm, stored[f"model.layers.{number}.{name}.weight"] + 1)


class TestAmongOtherParts:
    """Gemma 3 with images, as older versions of transformers name its tensors and as newer ones do."""

    @pytest.fixture(params=[True, False], ids=["tied", "untied"])
    def folder(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        return save_folder(tiny_gemma3_with_images(tie_word_embeddings=request.param), tmp_path / "model")

    @staticmethod
    def renamed(folder: Path) -> None:
        """Give every tensor the name that it has in the memory of transformers."""
        file = folder / "model.safetensors"
        tensors = load_file(file)
        assert {name.partition(".")[0] for name in tensors} == {
            "language_model",
            "vision_tower",
            "multi_modal_projector",
        }

        def inner(name: str) -> str:
            if name.startswith("language_model.lm_head"):
                return name.removeprefix("language_model.")
            if name.startswith("language_model.model."):
                return "model.language_model." + name.removeprefix("language_model.model.")
            return "model." + name

        save_file({inner(name): tensor for name, tensor in tensors.items()}, file)

    def test_both_ways_to_name_tensors_give_the_same_decoder(self, folder: Path) -> None:
        older = load(folder)
        self.renamed(folder)
        newer = load(folder)

        stored = load_file(folder / "model.safetensors")
        for weights in (older, newer):
            assert torch.equal(weights.embedding, stored["model.language_model.embed_tokens.weight"])
            assert torch.equal(weights.final_norm, stored["model.language_model.norm.weight"] + 1)
            assert torch.equal(weights.head, stored.get("lm_head.weight", weights.embedding))
            for number, layer in enumerate(weights.layers):
                down = stored[f"model.language_model.layers.{number}.mlp.down_proj.weight"]
                assert torch.equal(dense(layer.down), down)

    def test_a_tensor_of_a_part_that_is_not_known_is_named(self, folder: Path) -> None:
        rewrite(folder / "model.safetensors", {"audio_tower.conv.weight": torch.zeros(2)})

        with pytest.raises(CheckpointError, match=r"no use for: audio_tower\.conv\.weight"):
            load(folder)

    def test_a_tensor_under_both_its_names_is_refused(self, folder: Path) -> None:
        name = "model.language_model.norm.weight"
        rewrite(folder / "model.safetensors", {name: torch.zeros(64)})

        with pytest.raises(CheckpointError, match=r"holds both .*norm\.weight.* which are the same tensor"):
            load(folder)

    def test_a_missing_tensor_is_named(self, folder: Path) -> None:
        rewrite(folder / "model.safetensors", {"language_model.model.norm.weight": None})

        with pytest.raises(CheckpointError, match=r"lacks tensors that the model needs: model\.norm\.weight"):
            load(folder)


def test_images_are_left_unread_in_models_that_have_them_only(folder: Path) -> None:
    rewrite(folder / "model.safetensors", {"vision_tower.head.probe": torch.zeros(2)})

    with pytest.raises(CheckpointError, match=r"no use for: vision_tower\.head\.probe"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.embed_tokens.weight", "lacks tensors that the model needs: model.embed_tokens.weight"),
        ("model.layers.1.mlp.up_proj.weight", "lacks tensors that the model needs: model.layers.1.mlp.up_proj.weight"),
        ("lm_head.weight", "lacks tensors that the model needs: lm_head.weight"),
    ],
)
def test_a_missing_tensor_is_named(folder: Path, name: str, said: str) -> None:
    rewrite(folder / "model.safetensors", {name: None})

    with pytest.raises(CheckpointError, match=said):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight",
        "score.weight",
        "rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.inv_freq.scale",
    ],
)
def test_a_tensor_without_a_use_is_named(folder: Path, name: str) -> None:
    rewrite(folder / "model.safetensors", {name: torch.zeros(64)})

    with pytest.raises(CheckpointError, match=f"no use for: {name}"):
        load(folder)


def test_rotary_buffers_of_old_checkpoints_are_ignored(folder: Path) -> None:
    rewrite(folder / "model.safetensors", {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8)})

    assert_same_weights(load(folder), tiny_llama())


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(folder / "model.safetensors", {name: torch.zeros(96, 64)})

    with pytest.raises(CheckpointError, match=rf"{name} has shape \[96, 64\]; the config asks for \[64, 96\]"):
        load(folder)


def test_a_tensor_that_is_no_float_is_named_with_its_type(folder: Path) -> None:
    rewrite(folder / "model.safetensors", {"model.norm.weight": torch.zeros(64, dtype=torch.int8)})

    with pytest.raises(CheckpointError, match=r"model.norm.weight has type I8; supported: F64"):
        load(folder)


def test_a_tied_head_that_repeats_the_embedding_is_accepted(tmp_path: Path) -> None:
    model = tiny_llama(tie_word_embeddings=True)
    folder = save_folder(model, tmp_path)
    rewrite(folder / "model.safetensors", {"lm_head.weight": model.model.embed_tokens.weight.detach().clone()})

    weights = load(folder)

    assert_same_weights(weights, model)
    assert weights.head is weights.embedding


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    model = tiny_llama(tie_word_embeddings=True)
    head = model.model.embed_tokens.weight.detach().clone()
    head[7, 3] += 1
    folder = save_folder(model, tmp_path)
    rewrite(folder / "model.safetensors", {"lm_head.weight": head})

    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 2_000, -1])
def test_b032_a_file_that_is_cut_short_is_named_with_its_size(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])

    with pytest.raises(CheckpointError, match=rf"model.safetensors \({file.stat().st_size:,} bytes\) is cut short"):
        load(folder)


def test_b032_a_shard_that_is_cut_short_is_named(sharded: Path) -> None:
    file = shards(sharded)[1]
    file.write_bytes(file.read_bytes()[:-1000])

    with pytest.raises(CheckpointError, match=f"{file.name} .* is cut short"):
        load(sharded)


def test_b032_a_shard_that_is_missing_is_named(sharded: Path) -> None:
    file = shards(sharded)[1]
    file.unlink()

    with pytest.raises(CheckpointError, match=f"{file.name} is missing"):
        load(sharded)


def test_b032_a_tensor_that_the_index_lists_and_no_shard_holds_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.layers.9.extra"] = shards(sharded)[0].name
    index.write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match=r"does not hold tensor model\.layers\.9\.extra"):
        load(sharded)


def test_a_tensor_that_a_shard_holds_and_the_index_omits_is_named_if_it_has_no_use(sharded: Path) -> None:
    rewrite(shards(sharded)[0], {"extra": torch.zeros(1)})

    with pytest.raises(CheckpointError, match="no use for: extra"):
        load(sharded)


def test_a_tensor_in_two_shards_is_named(sharded: Path) -> None:
    first, second, *_ = shards(sharded)
    name = next(iter(load_file(first)))
    rewrite(second, {name: torch.zeros(1)})

    with pytest.raises(CheckpointError, match=f"tensor {name} is in both"):
        load(sharded)
