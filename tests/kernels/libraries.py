"""The C library, built for a level that is not the best one of this processor."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

from kernels.native import NativeOps, build, build_library
from kernels.native.attention import load_native_attention

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
