"""The Makefile and CI entry: what a newcomer meets before anything is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from _pytest import config as pytest_config

from tests import conftest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # An outer make hands its flags and variables on; this one starts afresh.
    environ = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def fake_python(folder: Path, script: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return f"PYTHON={path}"


def test_make_alone_tells_what_can_be_made(clone: Path) -> None:
    done = make(folder=clone)

    targets = {line.split()[0] for line in done.stdout.splitlines()}
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert targets == set(phony[1].split()) >= {"demo", "model", "test", "check", "lint", "bench", "clean"}


def test_missing_venv_module_is_explained(clone: Path) -> None:
    python = fake_python(clone, 'case "$2" in *ensurepip*) exit 1;; esac')

    done = make("test", python, folder=clone)

    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr
    assert not (clone / ".venv").exists()


def test_old_python_is_explained(clone: Path) -> None:
    done = make("test", fake_python(clone, "exit 1"), folder=clone)

    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert not (clone / ".venv").exists()


def test_environment_is_installed_once_and_again_when_dependencies_change(clone: Path) -> None:
    stamp = clone / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()

    fresh = make("--dry-run", "lint", folder=clone)
    os.utime(clone / "constraints.txt", (stamp.stat().st_mtime + 5, stamp.stat().st_mtime + 5))
    stale = make("--dry-run", "lint", folder=clone)

    assert "pip install" not in fresh.stdout
    assert "-c constraints.txt -e '.[dev]'" in stale.stdout


def test_check_runs_every_gate(clone: Path) -> None:
    planned = make("--dry-run", "check", folder=clone).stdout

    for gate in ("ruff format --check .", "ruff check .", "mypy --strict", "lint-imports", "-m pytest"):
        assert gate in planned


@pytest.mark.parametrize(
    ("arguments", "processors", "workers"),
    [
        ([], 4, 4),
        ([], 64, 8),
        ([], 1, 0),
        (["-x"], 4, 4),
        (["-k", "name"], 4, 0),
        (["-m", "model"], 4, 0),
        (["tests/packaging"], 4, 0),
        (["--last-failed"], 4, 0),
    ],
)
def test_the_whole_suite_gets_a_worker_for_each_processor_and_a_part_none(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], processors: int, workers: int
) -> None:
    monkeypatch.setattr(conftest, "available_processors", lambda: processors)
    monkeypatch.chdir(ROOT)

    config = pytest_config.get_config()
    config.parse(["--rootdir", str(ROOT), *arguments])

    assert conftest.pytest_xdist_auto_num_workers(config) == workers


def test_clean_leaves_the_sources(clone: Path) -> None:
    for name in (".venv", "build", ".mypy_cache"):
        (clone / name).mkdir()
    (clone / "scorer" / "__pycache__").mkdir(parents=True)

    assert make("clean", folder=clone).returncode == 0

    assert sorted(path.name for path in clone.iterdir()) == ["Makefile", "constraints.txt", "pyproject.toml", "scorer"]
    assert list((clone / "scorer").iterdir()) == []


def test_ci_is_an_executable_script_that_runs_both_halves_of_the_check() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert re.search(r"^check: lint test ", MAKEFILE, re.MULTILINE)
    assert {"make lint", "make test"} <= set(script.read_text(encoding="utf-8").splitlines())
