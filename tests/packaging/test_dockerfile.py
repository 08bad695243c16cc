"""The image: clean under hadolint, built from files that exist and that reach the builder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


def copied() -> list[str]:
    """What is taken from the build context."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()]


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_dockerfile_passes_hadolint() -> None:
    assert HADOLINT is not None

    done = subprocess.run([HADOLINT, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)

    assert copied()
    assert sorted(copied()) == sorted(let_through)
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_every_package_of_the_wheel_is_copied() -> None:
    packages = re.search(r"^packages = \[(.+)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)

    assert packages
    assert set(re.findall(r'"(\w+)"', packages[1])) <= set(copied())


def test_service_does_not_run_as_root() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    users = re.findall(r"^USER (\d+):(\d+)$", last_stage, re.MULTILINE)

    assert users
    assert "0" not in users[-1]
    assert last_stage.index("\nUSER ") < last_stage.index("\nCMD ")


def test_base_is_pinned_to_a_release() -> None:
    base = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)

    assert base
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base[1])


def test_health_check_needs_nothing_but_python() -> None:
    check = re.search(r"^HEALTHCHECK (?:.*\\\n)?\s*CMD (.+)$", DOCKERFILE, re.MULTILINE)

    assert check
    assert check[1].startswith('["python3", "-c", ')
