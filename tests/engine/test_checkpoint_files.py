from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.checkpoint_files import (
    GgufFiles,
    SafetensorsFiles,
    find_checkpoint_files,
    read_json_object,
    read_model_config,
)
from engine.errors import CheckpointError
from tests.helpers.llama_files import save_folder, tiny_llama, write_gguf


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_gguf_file_is_a_checkpoint_named_by_its_stem(tmp_path: Path) -> None:
    touch(tmp_path, "Small.Q4_1.gguf", "Other.gguf")

    files = find_checkpoint_files(tmp_path / "Small.Q4_1.gguf")

    assert files == GgufFiles(name="Small.Q4_1", gguf=tmp_path / "Small.Q4_1.gguf")


def test_a_folder_with_one_gguf_file_is_a_checkpoint_named_by_the_folder(tmp_path: Path) -> None:
    touch(tmp_path / "Small", "weights.gguf", "README.md", ".weights.gguf.17.partial")

    files = find_checkpoint_files(tmp_path / "Small")

    assert files == GgufFiles(name="Small", gguf=tmp_path / "Small/weights.gguf")


def test_a_folder_with_a_single_safetensors_file_is_a_checkpoint(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "model.safetensors", "also.gguf")

    files = find_checkpoint_files(tmp_path)

    assert isinstance(files, SafetensorsFiles)
    assert files.all_files == (tmp_path / "config.json", tmp_path / "model.safetensors")
    assert files.shard_of is None


def test_shards_are_those_that_the_index_lists(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "b.safetensors", "a.safetensors", "unlisted.safetensors")
    write_index(tmp_path, {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"})

    files = find_checkpoint_files(tmp_path)

    assert isinstance(files, SafetensorsFiles)
    assert files.shards == (tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert files.shard_of == {"x": files.shards[1], "y": files.shards[0], "z": files.shards[1]}


def test_a_snapshot_of_the_hub_cache_is_named_by_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some-org--Small-Model/snapshots/0a1b2c"
    touch(snapshot, "model.gguf")

    assert find_checkpoint_files(snapshot).name == "some-org/Small-Model"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "holds neither model.safetensors, .* it holds nothing"),
        (["pytorch_model.bin"], "holds neither model.safetensors, .* it holds pytorch_model.bin"),
        (["a.gguf", "b.gguf"], r"holds 2 GGUF files \(a.gguf, b.gguf\)"),
        (["model.safetensors"], "config.json is missing"),
        (["config.json", "consolidated.safetensors"], "holds consolidated.safetensors but neither"),
        (["config.json", "model.safetensors", "model.safetensors.index.json"], "holds both"),
        (["config.json", "model.safetensors.index.json"], "index.json is not valid JSON"),
    ],
)
def test_a_folder_that_is_no_clear_checkpoint_is_refused(tmp_path: Path, names: list[str], said: str) -> None:
    touch(tmp_path, *names)

    with pytest.raises(CheckpointError, match=said):
        find_checkpoint_files(tmp_path)


def test_b032_a_shard_that_is_listed_and_missing_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "a.safetensors")
    write_index(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"})

    with pytest.raises(CheckpointError, match=r"b\.safetensors is missing; model\.safetensors\.index\.json lists it"):
        find_checkpoint_files(tmp_path)


def test_a_link_into_a_cache_whose_file_is_gone_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "config.json")
    (tmp_path / "model.safetensors").symlink_to("../blobs/0a1b2c")

    with pytest.raises(CheckpointError, match=r"model\.safetensors links to \.\./blobs/0a1b2c, which is missing"):
        find_checkpoint_files(tmp_path)


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/a.safetensors", "a.bin", 3, None])
def test_an_index_may_only_name_safetensors_files_beside_it(tmp_path: Path, shard: object) -> None:
    touch(tmp_path, "config.json")
    write_index(tmp_path, {"x": shard})

    with pytest.raises(CheckpointError, match=r"index\.json: x is in "):
        find_checkpoint_files(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "a.safetensors"])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    touch(tmp_path, "config.json")
    write_index(tmp_path, weight_map)

    with pytest.raises(CheckpointError, match="weight_map is missing or empty"):
        find_checkpoint_files(tmp_path)


def test_a_path_that_is_not_there_or_not_a_model_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "model.bin")

    with pytest.raises(CheckpointError, match="absent does not exist"):
        find_checkpoint_files(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"model\.bin is not a \.gguf file"):
        find_checkpoint_files(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("content", "said"),
    [("[1]", "holds a JSON list"), ("{", "not valid JSON"), ("[" * 100_000, "not valid JSON"), ("\udcff", "not valid")],
)
def test_a_file_that_is_no_json_object_is_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "config.json").write_text(content, errors="surrogateescape")

    with pytest.raises(CheckpointError, match=rf"config\.json.*{said}"):
        read_json_object(tmp_path / "config.json")


def test_both_formats_of_one_model_describe_the_same_decoder(tmp_path: Path) -> None:
    model = tiny_llama()
    folder = find_checkpoint_files(save_folder(model, tmp_path / "folder"))
    single = find_checkpoint_files(write_gguf(model, tmp_path / "model.gguf"))

    from_folder, from_gguf = read_model_config(folder), read_model_config(single)

    assert from_gguf.rms_norm_eps == pytest.approx(from_folder.rms_norm_eps)  # GGUF keeps it in float32
    assert (from_gguf.num_parameters, from_gguf.kv_bytes_per_token(2)) == (
        from_folder.num_parameters,
        from_folder.kv_bytes_per_token(2),
    )
