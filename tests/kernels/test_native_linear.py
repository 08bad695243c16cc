"""Linear layers and the head in C with planted bugs: the check at start finds them."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest
import torch

from kernels.native import load_native_ops
from kernels.native.build import find_library
from kernels.native.linear import load_native_linear
from tests.kernels.libraries import LINEAR_SOURCES, build_broken

NATIVE = load_native_ops()
pytestmark = pytest.mark.skipif(NATIVE is None or NATIVE.linear is None, reason="no AMX or no C compiler here")


# name: the file, what stands in it, what takes its place
BUGS = {
    "drop the epsilon of the norm": ("rows.h", "mean + l->eps", "mean"),
    "count what is beyond a row in its norm": ("rows.h", "/ (float)l->in", "/ (float)(32 * steps)"),
    "leave the stream as it was": ("rows.h", "_mm512_mask_storeu_ps(at, here, sum);", ""),
    "drop the cube of gelu": ("rows.h", "_mm512_set1_ps(0.044715f)", "_mm512_setzero_ps()"),
    "swap gate and up": ("linear.c", "open_gate(low, high,", "open_gate(high, low,"),
    "drop the bias of a panel": ("linear.c", "if (t->bias)", "if (t->bias && t->column)"),
    "panels from last to first": ("linear.c", "panel_of(t, p, columns)", "panel_of(t, to - 1 - p + from, columns)"),
    "forget the sums of the first inputs": ("linear.c", "sums, s > 0,", "sums, 0,"),
    "the first block of rows again": ("linear.c", "pack_row(l, block, row, lo + row)", "pack_row(l, block, row, row)"),
    "write half of the rows": ("linear.c", "least(32, rows - g * 32)", "least(16, rows - g * 32)"),
    "forget the offsets": ("weights.h", "_mm512_set1_ps(*offset)", "_mm512_setzero_ps()"),
    "the scales of one tile for both": ("weights.h", "numbers->of[tile] + n", "numbers->of[0] + n"),
    "codes of another output": ("weights.h", "2 * k + n % 4 / 2", "2 * k"),
    "levels of another output": ("weights.h", "_mm512_or_si512(last, second)", "last"),
    "begin sums of coded weights anew": ("coded.c", "sums + g * 1024, s > 0,", "sums + g * 1024, 0,"),
    "one step for all of a stream": ("coded.c", "t->ring + s % RING * STEP", "t->ring"),
    "write the first 16 rows only": ("coded.c", "lo < rows; lo += 16, sums", "lo < 1; lo += 16, sums"),
    "drop the bias of coded weights": ("coded.c", "if (t->bias &&", "if (0 &&"),
    "leave rows as left factors": ("coded.c", "turn_tile(tile, tile);", ""),
    "some steps for many rows": ("linear.c", "int64_t s = 0; s < count; s++", "int64_t s = 0; s < count / 2; s++"),
    "scales in 16 bits always": ("weights.h", "coding == CODING_4_HALF || coding == CODING_8_HALF", "1"),
    "lose the low halves": ("vocabulary.c", "(bf16)(both >> 16)", "0"),
    "count entries that do not exist": (
        "vocabulary.c",
        "add_logits(&at, logits, count)",
        "add_logits(&at, logits, 32)",
    ),
    "lose a part": ("vocabulary.c", "int64_t p = 1; p < parts", "int64_t p = 2; p < parts"),
    "drop the cap": ("vocabulary.c", "if (q->soft_cap != 0.0f)", "if (0)"),
    "write logits of one group of rows only": ("vocabulary.c", "(group * 32 + r) * q->vocabulary", "r * q->vocabulary"),
}


@pytest.mark.parametrize(("name", "sound", "broken"), BUGS.values(), ids=BUGS)
def test_library_that_computes_something_else_is_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    sound: str,
    broken: str,
) -> None:
    library = ctypes.CDLL(str(build_broken(tmp_path, monkeypatch, LINEAR_SOURCES, name, sound, broken)))

    with caplog.at_level(logging.WARNING):
        assert load_native_linear(library) is None
    assert "disagree" in caplog.text


def test_a_poor_tanh_of_pytorch_does_not_count_against_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """As threads may get from MKL the first time that a process asks: right to 14 bits in float32, to 26 in float64."""
    exact = torch.Tensor.tanh

    def poor(x: torch.Tensor) -> torch.Tensor:
        return exact(x) * (1.0 + 2.0 ** (-14 if x.dtype == torch.float32 else -26))

    monkeypatch.setattr(torch.Tensor, "tanh", poor)
    path = find_library()
    assert path is not None

    assert load_native_linear(ctypes.CDLL(str(path))) is not None
