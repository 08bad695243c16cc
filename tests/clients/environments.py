"""Environments for client libraries: exact versions, installed with uv, kept under ``build``."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2] / "build" / "clients"
_INSTALL_S: Final = 300.0


class InstallFailed(Exception):
    """A client could not be installed; the message has what the installer said."""


def python_of(requirements: Path) -> Path:
    """The interpreter of the environment that ``requirements`` describes, made if there is none yet.

    Clients live apart from each other and from the service: together they do not resolve.

    Raises:
        InstallFailed: the package index or the packages did not do.
    """
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / f"{requirements.stem}-{digest}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), "--requirements", str(requirements))
    complete.touch()
    return python


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"`uv {' '.join(arguments)}` took more than {_INSTALL_S:.0f} s") from None
    if done.returncode:
        raise InstallFailed(f"`uv {' '.join(arguments)}` failed:\n{done.stderr.strip()}")
