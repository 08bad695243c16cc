from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.checkpoint import load_checkpoint
from engine.errors import CheckpointError
from tests.helpers.llama_files import assert_same_weights, save_folder, tiny_llama, write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tiny_llama(), tmp_path / "Small-Model", max_shard_size="100KB")


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return write_gguf(tiny_llama(), tmp_path / "Small-Model.F32.gguf")


def test_a_folder_is_loaded_with_its_config_and_name(folder: Path) -> None:
    checkpoint = load_checkpoint(folder, torch.float32)

    assert_same_weights(checkpoint.weights, tiny_llama())
    assert checkpoint.name == "Small-Model"
    assert checkpoint.config.vocab_size == checkpoint.weights.embedding.shape[0]


def test_a_gguf_file_is_loaded_with_its_config_and_name(gguf_path: Path) -> None:
    checkpoint = load_checkpoint(gguf_path, torch.bfloat16)

    assert_same_weights(checkpoint.weights, tiny_llama(), torch.bfloat16)
    assert checkpoint.name == "Small-Model.F32"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_b031_other_types_than_bfloat16_and_float32_are_refused(folder: Path, dtype: torch.dtype) -> None:
    with pytest.raises(CheckpointError, match=f"cannot be loaded as {dtype}; supported: torch.bfloat16, torch.float32"):
        load_checkpoint(folder, dtype)


def test_b032_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(CheckpointError, match=r"empty holds neither model\.safetensors"):
        load_checkpoint(tmp_path / "empty", torch.float32)


def revision(path: Path, dtype: torch.dtype = torch.float32) -> str:
    return load_checkpoint(path, dtype).revision


def test_the_revision_depends_neither_on_the_place_nor_on_the_dtype(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")

    assert revision(copy) == revision(folder) == revision(folder, torch.bfloat16)
    assert len(revision(folder)) == 16


def flip_last_bit(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def change_epsilon(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 1e-4}))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", change_epsilon),
        ("model-00001-of-*.safetensors", flip_last_bit),
        ("model-00003-of-*.safetensors", flip_last_bit),
    ],
)
def test_the_revision_changes_with_the_content_of_every_file(
    folder: Path, name: str, change: Callable[[Path], None]
) -> None:
    before = revision(folder)

    change(next(folder.glob(name)))

    assert revision(folder) != before


def test_the_revision_of_a_gguf_file_changes_with_its_last_bit(gguf_path: Path) -> None:
    before = revision(gguf_path)

    flip_last_bit(gguf_path)

    assert revision(gguf_path) != before


@pytest.mark.model
def test_the_default_model_loads_under_its_name(default_model_path: Path) -> None:
    checkpoint = load_checkpoint(default_model_path, torch.bfloat16)

    assert checkpoint.name == "SmolLM2-135M-Instruct"
    assert checkpoint.config.kv_bytes_per_token(2) == 23_040
    assert checkpoint.weights.head is checkpoint.weights.embedding
