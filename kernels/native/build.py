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
from pathlib import Path

_LOG = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("elementwise.c")
PREBUILT = Path(__file__).with_name("prebuilt")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-ffast-math", "-fno-finite-math-only", "-fopenmp", "-shared", "-fPIC")
# what each x86-64 level needs of the processor, best first
_X86_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "fma", "bmi2", "f16c"},
}
_COMPILE_LIMIT_S = 60


def find_library() -> Path | None:
    """The library for this processor: prebuilt, built before, or built now; None without a compiler."""
    level = _level()
    prebuilt = PREBUILT / f"{level}.so"
    if prebuilt.exists():
        return prebuilt
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        _LOG.info("no C compiler found; elementwise operations run in PyTorch")
        return None
    for folder in (Path.home() / ".cache" / "radix-scorer" / "native", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return build_library(folder, level, compiler)
        except OSError as error:
            _LOG.info("%s cannot hold the native library: %s", folder, error)
        except subprocess.SubprocessError as error:
            _LOG.warning("the native library could not be built: %s", error)
            return None
    return None


def build_library(folder: Path, level: str, compiler: str) -> Path:
    """Compile into ``folder`` unless it is there already; takes about a second.

    Raises:
        subprocess.SubprocessError: the compiler failed or took too long.
        OSError: the folder cannot be written.
    """
    command = [compiler, *_FLAGS, f"-march={level}"]
    key = hashlib.sha256(SOURCE.read_bytes() + "\0".join(command).encode()).hexdigest()[:16]
    target = folder / f"elementwise-{key}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "elementwise.so"
        subprocess.run(  # noqa: S603  our own source and flags
            [*command, str(SOURCE), "-o", str(built), "-lm"], check=True, capture_output=True, timeout=_COMPILE_LIMIT_S
        )
        built.rename(target)  # whole or not at all, also when two processes build at once
    return target


def _level() -> str:
    """The ``-march`` level of this processor."""
    if platform.machine() != "x86_64":
        return "native"
    flags = next(
        (
            set(line.split())
            for line in Path("/proc/cpuinfo").read_text("ascii").splitlines()
            if line.startswith("flags")
        ),
        set(),
    )
    return next((level for level, needed in _X86_LEVELS.items() if needed <= flags), "x86-64-v2")


def _main(folder: Path) -> None:
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise SystemExit("no C compiler found; looked for " + ", ".join(_COMPILERS))
    folder.mkdir(parents=True, exist_ok=True)
    for level in _X86_LEVELS if platform.machine() == "x86_64" else ["native"]:
        library = build_library(folder, level, compiler)
        library.rename(folder / f"{level}.so")


if __name__ == "__main__":
    _main(Path(sys.argv[1]) if len(sys.argv) > 1 else PREBUILT)
