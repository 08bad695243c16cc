from __future__ import annotations

from typing import Any

import pytest

from scorer.schema import ScoreRequest
from scorer.wire_path import allowed_values, look_up


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", [{"b": [1, 2]}]),
        ("a[0].b[1]", 2),
        ("a[0]", {"b": [1, 2]}),
        ("a[3]", None),
        ("a.b", None),
        ("x", None),
        ("", ...),
    ],
)
def test_looks_up_what_a_path_leads_to(path: str, value: Any) -> None:
    tree = {"a": [{"b": [1, 2]}]}

    assert look_up(tree, path) == (tree if value is ... else value)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("readout.kind", ["auto", "labels", "likelihood"]),
        ("truncate", ["document", "error"]),
        ("pairs", ["all"]),
        ("documents[0]", []),
        ("nothing", []),
    ],
)
def test_finds_the_literals_of_a_field(path: str, values: list[str]) -> None:
    assert allowed_values(ScoreRequest, path) == values
