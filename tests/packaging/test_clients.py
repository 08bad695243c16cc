"""The suite of real clients: what it needs is there, and every version is exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.suite import HERE, LIBRARIES, selected

PINNED = [*sorted((HERE / "requirements").glob("*.txt")), HERE.parent / "conformance" / "schemathesis.txt"]
EXACT = re.compile(r"[a-z0-9._-]+(\[[a-z0-9,._-]+\])?==[^\s,;*]+( ; .*)?", re.IGNORECASE)


def test_every_client_has_its_script_and_its_requirements_and_none_is_left_over() -> None:
    scripts = {library.path for library in LIBRARIES}
    requirements = {library.requirements for library in LIBRARIES}

    assert scripts == {path for path in (HERE / "scripts").glob("*.py") if path.name != "expected.py"}
    assert requirements == set((HERE / "requirements").glob("*.txt"))


def test_names_of_clients_are_distinct() -> None:
    names = [library.name(variant) for library in LIBRARIES for variant in library.variants]

    assert len(set(names)) == len(names)


def test_a_part_of_a_name_narrows_the_suite_to_clients() -> None:
    assert [(library.environment, library.variants) for library in selected(["x jina", "voyageai"])] == [
        ("llama-index", ("jina", "jina under /jina")),
        ("voyageai", ("voyage",)),
    ]
    assert selected([]) == list(LIBRARIES)


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_every_version_is_exact(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()

    assert lines
    assert [line for line in lines if not EXACT.fullmatch(line)] == []
