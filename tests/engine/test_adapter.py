from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from engine.checkpoint import Checkpoint, load_checkpoint
from engine.errors import CheckpointError
from kernels.weights import dense
from tests.helpers.adapter_files import RANK, every_module, write_adapter
from tests.helpers.families import tiny_gemma3_with_images, tiny_model
from tests.helpers.llama_files import save_folder, write_gguf


def merge_by_hand(model: PreTrainedModel, adapter: Path, scale: float) -> PreTrainedModel:
    """The model with every product added, one element of the rank after the other."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if ".lora_A." in name:
                up = tensors[name.replace("lora_A", "lora_B")]
                weight = model.get_parameter(name.removeprefix("base_model.model.").replace(".lora_A", ""))
                for rank in range(RANK):
                    weight.add_(torch.outer(up[:, rank], down[rank]), alpha=scale)
    return model


def assert_close(found: Checkpoint, wanted: Checkpoint) -> None:
    for ours, theirs in zip(found.weights.layers, wanted.weights.layers, strict=True):
        for name in ("qkv", "attention_out", "gate_up", "down"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_model("qwen3")


@pytest.fixture
def base(tmp_path: Path, model: PreTrainedModel) -> Path:
    return save_folder(model, tmp_path / "Base")


@pytest.fixture
def adapter(tmp_path: Path, model: PreTrainedModel) -> Path:
    return write_adapter(tmp_path / "Ranker", model, every_module(model))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "phi3"])
@pytest.mark.parametrize("through_gguf", [False, True])
def test_every_matrix_of_a_layer_can_be_changed(tmp_path: Path, family: str, *, through_gguf: bool) -> None:
    model = tiny_model(family, attention_bias=False)
    adapter = write_adapter(tmp_path / "adapter", model, every_module(model))
    base = write_gguf(model, tmp_path / "a.gguf") if through_gguf else save_folder(model, tmp_path / "a")
    merged = save_folder(merge_by_hand(model, adapter, 6 / RANK), tmp_path / "merged")

    found = load_checkpoint(base, torch.float32, adapter=adapter)

    assert_close(found, load_checkpoint(merged, torch.float32))


@pytest.mark.parametrize("prefix", ["model.language_model.layers", "language_model.model.layers"])
def test_an_adapter_of_a_model_with_images_changes_its_text_part(tmp_path: Path, prefix: str) -> None:
    model = tiny_gemma3_with_images()
    modules = [module for module in every_module(model) if ".language_model." in module]
    adapter = write_adapter(tmp_path / "adapter", model, modules)
    base = save_folder(model, tmp_path / "a")
    merged = save_folder(merge_by_hand(model, adapter, 6 / RANK), tmp_path / "merged")
    tensors = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("model.language_model.layers", prefix): tensor for name, tensor in tensors.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")

    found = load_checkpoint(base, torch.float32, adapter=adapter)

    assert_close(found, load_checkpoint(merged, torch.float32))


def test_an_adapter_that_changes_what_sees_images_is_refused(tmp_path: Path) -> None:
    model = tiny_gemma3_with_images()
    module = "model.vision_tower.encoder.layers.0.mlp.fc1"
    adapter = write_adapter(tmp_path / "adapter", model, [module])

    with pytest.raises(CheckpointError, match=rf"changes {module}, which this model has not"):
        load_checkpoint(save_folder(model, tmp_path / "a"), torch.float32, adapter=adapter)


def test_what_the_adapter_does_not_name_stays_as_it_is(tmp_path: Path, model: PreTrainedModel, base: Path) -> None:
    adapter = write_adapter(tmp_path / "one", model, ["model.layers.1.self_attn.k_proj"])

    plain = load_checkpoint(base, torch.float32).weights.layers
    found = load_checkpoint(base, torch.float32, adapter=adapter).weights.layers

    assert torch.equal(dense(found[0].qkv), dense(plain[0].qkv))
    changed = (dense(found[1].qkv) != dense(plain[1].qkv)).any(dim=1)
    queries, keys = 4 * 24, 2 * 24
    assert changed.nonzero().flatten().tolist() == list(range(queries, queries + keys))


def test_the_scale_may_go_by_the_root_of_the_rank(tmp_path: Path, model: PreTrainedModel, base: Path) -> None:
    adapter = write_adapter(tmp_path / "root", model, every_module(model), use_rslora=True)
    merged = save_folder(merge_by_hand(model, adapter, 6 / math.sqrt(RANK)), tmp_path / "merged")

    assert_close(load_checkpoint(base, torch.float32, adapter=adapter), load_checkpoint(merged, torch.float32))


def test_a_sum_is_rounded_once(model: PreTrainedModel, base: Path, adapter: Path, tmp_path: Path) -> None:
    plain = dense(load_checkpoint(base, torch.bfloat16).weights.layers[0].down)
    tensors = load_file(adapter / "adapter_model.safetensors")
    down, up = (tensors[f"base_model.model.model.layers.0.mlp.down_proj.lora_{each}.weight"] for each in "AB")

    found = dense(load_checkpoint(base, torch.bfloat16, adapter=adapter).weights.layers[0].down)

    exact = plain.double() + 6 / RANK * (up.double() @ down.double())
    assert found.dtype == torch.bfloat16
    assert (found == exact.bfloat16()).float().mean() > 0.999


def test_an_untied_head_can_be_changed_and_a_tied_one_cannot(tmp_path: Path) -> None:
    untied = tiny_model("qwen2")
    adapter = write_adapter(tmp_path / "adapter", untied, ["lm_head"])
    base = save_folder(untied, tmp_path / "untied")
    tied = save_folder(tiny_model("qwen2", tie_word_embeddings=True), tmp_path / "tied")
    merged = merge_by_hand(untied, adapter, 6 / RANK)

    torch.testing.assert_close(
        load_checkpoint(base, torch.float32, adapter=adapter).weights.head, merged.get_parameter("lm_head.weight").data
    )
    with pytest.raises(CheckpointError, match="changes lm_head, which this model has not"):
        load_checkpoint(tied, torch.float32, adapter=adapter)


def test_name_and_revision_tell_the_adapter_and_its_content(base: Path, adapter: Path) -> None:
    plain = load_checkpoint(base, torch.float32)
    first = load_checkpoint(base, torch.float32, adapter=adapter)
    again = load_checkpoint(base, torch.float32, adapter=adapter.rename(adapter.with_name("Renamed")))
    tensors = adapter.with_name("Renamed") / "adapter_model.safetensors"
    changed: dict[str, Tensor] = load_file(tensors)
    next(iter(changed.values()))[0, 0] += 1
    save_file(changed, tensors)
    other = load_checkpoint(base, torch.float32, adapter=tensors.parent)

    assert [plain.name, first.name, again.name] == ["Base", "Base+Ranker", "Base+Renamed"]
    assert first.revision == again.revision
    assert len({plain.revision, first.revision, other.revision}) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only 'LORA'"),
        ({"use_dora": True}, "use_dora is True; only False"),
        ({"bias": "all"}, "bias is 'all'; only 'none'"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save is ['embed_tokens']; only None"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is {'q_proj': 8}; only {}"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True; only False"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'; an adapter that leaves"),
        ({"r": 0}, "r is 0; a positive whole number"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"new_thing": 1}, "new_thing is 1; this field is not supported"),
        ({"r": 4}, "lora_A of model.layers.0.self_attn.q_proj is torch.float32 [3, 64]; [4, 64] in floats are needed"),
    ],
)
def test_an_adapter_of_another_kind_is_refused_by_field_or_tensor(
    tmp_path: Path, model: PreTrainedModel, base: Path, changes: dict[str, Any], said: str
) -> None:
    adapter = write_adapter(tmp_path / "adapter", model, ["model.layers.0.self_attn.q_proj"], **changes)

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(base, torch.float32, adapter=adapter)

    assert said in str(caught.value)
    assert str(adapter) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("model.layers.9.self_attn.q_proj.lora_A", None, "model.layers.9.self_attn.q_proj has lora_A only"),
        ("model.embed_tokens.lora_embedding_A", None, "model.embed_tokens.lora_embedding_A.weight is no factor"),
        ("model.layers.0.mlp.up_proj.lora_A", torch.zeros(3, 65), "up_proj is torch.float32 [3, 65]; [3, 64]"),
        (
            "model.layers.0.mlp.up_proj.lora_A",
            torch.zeros(3, 64, dtype=torch.int8),
            "torch.int8 [3, 64]; [3, 64] in floats",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    base: Path, adapter: Path, name: str, tensor: Tensor | None, said: str
) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file(
        load_file(file) | {f"base_model.model.{name}.weight": torch.zeros(3, 64) if tensor is None else tensor}, file
    )

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(base, torch.float32, adapter=adapter)

    assert said in str(caught.value)


def test_a_module_that_the_model_has_not_is_named(tmp_path: Path, base: Path) -> None:
    deeper = tiny_model("qwen3", num_hidden_layers=4)
    adapter = write_adapter(tmp_path / "adapter", deeper, ["model.layers.3.mlp.up_proj"])

    with pytest.raises(CheckpointError, match=r"changes model\.layers\.3\.mlp\.up_proj, which this model has not"):
        load_checkpoint(base, torch.float32, adapter=adapter)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_that_is_missing_or_cut_short_is_named(base: Path, adapter: Path, name: str) -> None:
    file = adapter / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(base, torch.float32, adapter=adapter)

    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name} cannot be read: No such file"):
        load_checkpoint(base, torch.float32, adapter=adapter)


def test_an_adapter_without_tensors_is_refused(base: Path, adapter: Path) -> None:
    save_file({}, adapter / "adapter_model.safetensors")

    with pytest.raises(CheckpointError, match="holds no tensors"):
        load_checkpoint(base, torch.float32, adapter=adapter)
