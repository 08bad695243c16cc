"""constraints.txt: one exact version for each package that the development install brings in."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PINS = {
    canonicalize_name(requirement.name): requirement
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
    for requirement in [Requirement(line)]
}


def wanted() -> list[Requirement]:
    """What ``pip install '.[dev]'`` asks for, with all that these packages ask for in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    todo = [
        Requirement(line) for line in (*project["dependencies"], *(line for group in extras.values() for line in group))
    ]
    seen: dict[str, Requirement] = {}
    while todo:
        requirement = todo.pop()
        key = f"{canonicalize_name(requirement.name)}{sorted(requirement.extras)}"
        if key in seen or requirement.name == project["name"]:
            continue
        seen[key] = requirement
        try:
            needs = [Requirement(line) for line in metadata.distribution(requirement.name).requires or ()]
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here: its own needs are unknown, itself must be pinned
        todo += [
            need
            for need in needs
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in ("", *requirement.extras))
        ]
    return list(seen.values())


def test_every_package_of_the_development_install_is_pinned() -> None:
    assert {canonicalize_name(requirement.name) for requirement in wanted()} - set(PINS) == set()


@pytest.mark.parametrize("pin", PINS.values(), ids=str)
def test_pin_is_one_plain_release(pin: Requirement) -> None:
    assert re.fullmatch(r"==[\w!.]+", str(pin.specifier)), "exact, and without a local version tag"
    assert pin.url is None


@pytest.mark.parametrize("requirement", [r for r in wanted() if r.specifier], ids=str)
def test_pin_satisfies_who_asks_for_it(requirement: Requirement) -> None:
    (pin,) = PINS[canonicalize_name(requirement.name)].specifier

    assert requirement.specifier.contains(Version(pin.version), prereleases=True)
