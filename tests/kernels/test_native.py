"""The C library: built once, found again, refused when it is wrong."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.native import NativeOps, build, load_native_ops, ops
from tests.kernels.libraries import BASE_SOURCES, build_broken, built_for, moved

COMPILER = shutil.which("cc")
BASELINE = build.X86_LEVELS[-2]
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")


@needs_compiler
def test_second_build_finds_the_first(tmp_path: Path) -> None:
    assert COMPILER is not None
    first = build.build_library(tmp_path, BASELINE, COMPILER)
    stamp = first.stat().st_mtime_ns

    assert build.build_library(tmp_path, BASELINE, COMPILER) == first
    assert first.stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [first]


@needs_compiler
@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("+ eps", "+ 0.5f"),
        ("* scale *", "* 0.5f *"),
        ("* widen(up[i])", "* 0.5f"),
        ("- second * s[i]", "+ 0.5f"),
        ("* add", "* 0.5f"),
    ],
)
def test_library_that_computes_something_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: str, broken: str
) -> None:
    library = build_broken(tmp_path, monkeypatch, BASE_SOURCES, "elementwise.c", sound, broken, level=BASELINE)
    monkeypatch.setattr(ops, "find_library", lambda: library)

    assert load_native_ops() is None


@needs_compiler
def test_compiler_older_than_the_processor_builds_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = build.Level("next", ("-march=the-next-one",), frozenset())
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(build, "processor_levels", lambda: [unknown, BASELINE])
    monkeypatch.setattr(Path, "home", lambda: tmp_path)

    library = build.find_library()

    assert library is not None
    assert library.name == build.build_library(tmp_path, BASELINE, COMPILER or "").name


@needs_compiler
def test_loading_leaves_denormal_numbers_alone(tmp_path: Path) -> None:
    """GCC links code into what is built with -ffast-math that flushes them to zero in the whole thread."""
    library = build.build_library(tmp_path, BASELINE, COMPILER or "")
    program = f"import ctypes; ctypes.CDLL({str(library)!r}); print(float('5e-324') > 0)"

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert run.stdout == "True\n"


def test_without_a_compiler_there_are_no_native_operations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ())
    monkeypatch.setattr(build, "PREBUILT", tmp_path)

    assert load_native_ops() is None


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_input_stays_visible(tmp_path: Path, value: float) -> None:
    assert COMPILER is not None
    native = NativeOps(ctypes.CDLL(str(build.build_library(tmp_path, BASELINE, COMPILER))))
    gate_up = torch.ones(2, 40).bfloat16()
    gate_up[1, 3] = value
    weight = torch.ones(40)

    assert not native.swiglu(gate_up)[1].isfinite().all()
    assert native.swiglu(gate_up)[0].isfinite().all()
    assert not native.rms_norm(gate_up, weight, 1e-5)[1].isfinite().all()
    assert not native.add_rms_norm(torch.zeros(2, 40), gate_up, weight, 1e-5)[1].isfinite().all()


@pytest.mark.parametrize("level", [level.name for level in build.X86_LEVELS])
def test_bits_of_a_row_do_not_depend_on_its_address(level: str) -> None:
    """A compiler may take the first elements of a sum one by one, up to where an address is even."""
    native = built_for(level)
    if native is None:
        pytest.skip(f"no compiler here, or not a processor of {level}")
    x, weight, stream = torch.randn(3, 77).bfloat16(), torch.randn(77), torch.randn(3, 77)
    ids = torch.tensor([[0, 2], [1, 1], [2, 0]])

    def results(by: int) -> list[Tensor]:
        grown = moved(stream, by)
        return [
            native.rms_norm(moved(x, by), moved(weight, by), 1e-5),
            native.add_rms_norm(grown, moved(x, by), moved(weight, by), 1e-5),
            grown,
            native.swiglu(moved(x[:, :76], by)),
            native.geglu(moved(x[:, :76], by)),
            *native.quantise_rows(moved(x, by)),
            native.scale_rows(moved(x, by), moved(stream[:, 0], by)),
            native.label_logits(moved(stream, by), moved(x, by), ids),
        ]

    wanted = results(0)
    for by in range(1, 16):
        for got, one in zip(results(by), wanted, strict=True):
            assert torch.equal(got, one)
