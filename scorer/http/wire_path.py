"""Follow the path of a decoding error, through the data and through the types."""

from __future__ import annotations

import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
"""A field, an element of a list, or ``[...]``: some value of an object whose keys are the caller's."""


def steps_of(path: str) -> list[str | int]:
    """``documents[3].text`` as names and indices."""
    steps = ((step["name"], step["index"]) for step in _STEP.finditer(path))
    return [name if name is not None else int(index) if index.isdigit() else index for name, index in steps]


def look_up(tree: Any, path: str) -> Any:
    """The value at ``path`` (``documents[3].text``), None where the path does not lead."""
    for step in steps_of(path):
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def allowed_values(kind: Any, path: str) -> list[str]:
    """The literal values that the type of ``path`` names, starting from the struct ``kind``."""
    kinds = [kind]
    for step in _STEP.finditer(path):
        kinds = [below for each in kinds for below in _below(each, step["name"])]
    return [str(value) for each in kinds for option in _options(each) for value in _literals(option)]


def _below(kind: Any, name: str | None) -> list[Any]:
    """Types of the field ``name``, or of the elements where there is no name."""
    found: list[Any] = []
    for option in _options(kind):
        if name is not None and isinstance(option, type) and issubclass(option, msgspec.Struct):
            if option.__struct_config__.tag_field == name:
                found.append(Literal[option.__struct_config__.tag])
            hints = get_type_hints(option, include_extras=True)
            found += [hints[name]] if name in hints else []
        elif name is None and get_origin(option) in {list, tuple}:
            found += get_args(option)
        elif name is None and get_origin(option) is dict:
            found.append(get_args(option)[1])
    return found


def _options(kind: Any) -> list[Any]:
    """The members of a union, with annotations taken off."""
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) in {Union, UnionType}:
        return [option for member in get_args(kind) for option in _options(member)]
    return [kind]


def _literals(option: Any) -> tuple[Any, ...]:
    return get_args(option) if get_origin(option) is Literal else ()
