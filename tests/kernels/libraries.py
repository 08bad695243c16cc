"""The C library, built for a level that is not the best one of this processor or with a bug planted."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.native import NativeOps, build, build_library
from kernels.native.attention import load_native_attention

BASE_SOURCES = ("elementwise.c", "spans.c")
"""What every :class:`kernels.native.NativeOps` needs."""

LINEAR_SOURCES = ("linear.c", "coded.c", "feed_forward8.c", "vocabulary.c")
"""What linear layers, the head and feed-forward parts in 8 bits need of each other."""

_FOLDER = Path(tempfile.gettempdir()) / "radix-scorer-tests"


def built_for(name: str) -> NativeOps | None:
    """The library for one of the levels that this processor has."""
    level = next((level for level in build.processor_levels() if level.name == name), None)
    compiler = build.find_compiler()
    if level is None or compiler is None:
        return None
    _FOLDER.mkdir(exist_ok=True)
    library = ctypes.CDLL(str(build_library(_FOLDER, level, compiler)))
    return NativeOps(library, load_native_attention(library))


def build_broken(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: tuple[str, ...],
    name: str,
    sound: str,
    broken: str,
    *,
    level: build.Level | None = None,
) -> Path:
    """The library built of copies of ``sources`` in ``folder``, with ``broken`` for ``sound`` in ``name``.

    Args:
        level: By default the best that this processor has.
    """
    for file in (*build.SOURCES, *build.HEADERS):
        shutil.copy(file, folder)
    text = (folder / name).read_text()
    assert sound in text
    (folder / name).write_text(text.replace(sound, broken))
    monkeypatch.setattr(build, "SOURCES", tuple(folder / source for source in sources))
    monkeypatch.setattr(build, "HEADERS", tuple(folder / header.name for header in build.HEADERS))
    # a bug shows at any speed, and half of the time went into optimising what runs once
    monkeypatch.setattr(build, "_FLAGS", ("-Og", *(flag for flag in build._FLAGS if flag != "-O3")))
    compiler = build.find_compiler()
    assert compiler is not None
    return build_library(folder, level or build.processor_levels()[0], compiler)


def moved(tensor: Tensor, by: int) -> Tensor:
    """The same numbers, dense, ``by`` elements after an address that is a multiple of 64."""
    room = torch.empty(tensor.numel() + by, dtype=tensor.dtype)
    assert room.data_ptr() % 64 == 0
    return room[by:].view(tensor.shape).copy_(tensor)
