"""Builds the C library for this processor and keeps it.

Libraries are named by the hash of source, flags and compiler, so a change of any of them
builds anew. ``python -m kernels.native.build DIR`` builds for all levels ahead of time, for
an image that has no compiler.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
SOURCES = tuple(
    _FOLDER / name
    for name in (
        "elementwise.c",
        "spans.c",
        "attention_work.c",
        "attention.c",
        "linear.c",
        "coded.c",
        "feed_forward8.c",
        "vocabulary.c",
        "layers.c",
    )
)
HEADERS = tuple(
    _FOLDER / name
    for name in (
        "tiles.h",
        "spans.h",
        "attention_work.h",
        "attention.h",
        "linear.h",
        "feed_forward8.h",
        "rounded.h",
        "products.h",
        "rows.h",
        "weights.h",
        "panels.h",
        "softmax.h",
    )
)
PREBUILT = Path(__file__).with_name("prebuilt")
_COMPILERS = ("cc", "gcc", "clang")
# What -ffast-math allows but for NaN and infinity; that flag itself would link code that turns
# denormal numbers off in the thread that loads the library.
_MATH = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math")
_FLAGS = ("-O3", *_MATH, "-fopenmp", "-shared", "-fPIC")
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@dataclass(frozen=True, slots=True)
class Level:
    """A set of instructions to build for, and what /proc/cpuinfo must list for it."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


# best first; the last runs on every x86-64 processor
X86_LEVELS = (
    Level(
        "x86-64-v4-amx",
        ("-march=x86-64-v4", "-mprfchw", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _AVX512 | {"3dnowprefetch", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    ),
    Level("x86-64-v4-bf16", ("-march=x86-64-v4", "-mavx512bf16"), _AVX512 | {"avx512_bf16"}),
    Level("x86-64-v4", ("-march=x86-64-v4",), _AVX512),
    Level("x86-64-v3", ("-march=x86-64-v3",), frozenset({"avx2", "fma", "bmi2", "f16c"})),
    Level("x86-64-v2", ("-march=x86-64-v2",), frozenset()),
)
_OTHER = Level("native", ("-march=native",), frozenset())
_COMPILE_LIMIT_S = 300


def find_library() -> Path | None:
    """The library for this processor: prebuilt, built before, or built now; None without a compiler."""
    levels = processor_levels()
    for level in levels:
        if (prebuilt := PREBUILT / f"{level.name}.so").exists():
            return prebuilt
    compiler = find_compiler()
    if compiler is None:
        _LOG.info("no C compiler found; attention and elementwise operations run in PyTorch")
        return None
    for level in levels:
        for folder in (Path.home() / ".cache" / "radix-scorer" / "native", Path(tempfile.gettempdir())):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                return build_library(folder, level, compiler)
            except OSError as error:
                _LOG.info("%s cannot hold the native library: %s", folder, error)
            except subprocess.SubprocessError as error:
                _LOG.warning("the native library could not be built for %s: %s", level.name, error)
                break  # a compiler may be older than the processor
    return None


def build_library(folder: Path, level: Level, compiler: str) -> Path:
    """Compile into ``folder`` unless it is there already; takes a few seconds.

    Raises:
        subprocess.SubprocessError: the compiler failed or took too long.
        OSError: the folder cannot be written.
    """
    command = [compiler, *_FLAGS, *level.flags]
    sources = b"".join(source.read_bytes() for source in (*SOURCES, *HEADERS))
    key = hashlib.sha256(sources + "\0".join(command).encode()).hexdigest()[:16]
    target = folder / f"native-{key}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "native.so"
        subprocess.run(  # noqa: S603  our own sources and flags
            [*command, *map(str, SOURCES), "-o", str(built), "-lm"],
            check=True,
            capture_output=True,
            timeout=_COMPILE_LIMIT_S,
        )
        built.rename(target)  # whole or not at all, also when two processes build at once
    return target


def find_compiler() -> str | None:
    """Path of a C compiler."""
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


def processor_levels() -> list[Level]:
    """The levels that this processor has, best first."""
    if platform.machine() != "x86_64":
        return [_OTHER]
    flags = next(
        (
            set(line.split())
            for line in Path("/proc/cpuinfo").read_text("ascii").splitlines()
            if line.startswith("flags")
        ),
        set(),
    )
    return [level for level in X86_LEVELS if level.needs <= flags]


def _main(folder: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise SystemExit("no C compiler found; looked for " + ", ".join(_COMPILERS))
    folder.mkdir(parents=True, exist_ok=True)
    for level in X86_LEVELS if platform.machine() == "x86_64" else (_OTHER,):
        library = build_library(folder, level, compiler)
        library.rename(folder / f"{level.name}.so")


if __name__ == "__main__":
    _main(Path(sys.argv[1]) if len(sys.argv) > 1 else PREBUILT)
