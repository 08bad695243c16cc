from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from scorer.dialects.schema import ScoreRequest
from scorer.http.wire_path import allowed_values, look_up


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", [{"b": [1, 2]}]),
        ("a[0].b[1]", 2),
        ("a[0]", {"b": [1, 2]}),
        ("a[3]", None),
        ("a[...]", None),
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


class Cat(msgspec.Struct, tag_field="kind", tag="cat"):
    mood: Literal["good", "bad"]


class Dog(msgspec.Struct, tag_field="kind", tag="dog"):
    mood: Literal["fine"]


class Zoo(msgspec.Struct):
    named: dict[str, Cat | Dog]


@pytest.mark.parametrize(
    ("path", "values"), [("named[...].kind", ["cat", "dog"]), ("named[...].mood", ["good", "bad", "fine"])]
)
def test_goes_through_objects_with_keys_of_the_callers_and_finds_tags(path: str, values: list[str]) -> None:
    assert allowed_values(Zoo, path) == values
