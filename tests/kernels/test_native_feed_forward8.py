"""Feed-forward parts in 8 bits in C: their whole numbers, and planted bugs that the check at start finds."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from kernels.api import Activation
from kernels.native import load_native_ops
from kernels.native.feed_forward8 import load_feed_forward8
from kernels.native.linear import NativeLinear
from tests.kernels.libraries import LINEAR_SOURCES, build_broken

NATIVE = load_native_ops()
pytestmark = pytest.mark.skipif(NATIVE is None or NATIVE.feed_forward8 is None, reason="no AMX or no C compiler here")

Numbers: TypeAlias = npt.NDArray[np.float32]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]
SIGNS = np.array([[1 - 2 * ((i & j).bit_count() % 2) for j in range(64)] for i in range(64)])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 17, 128, 129, 300])
@pytest.mark.parametrize(("width", "inner"), [(33, 17), (64, 64), (833, 90), (1610, 70), (90, 1700)])
def test_whole_numbers_are_multiplied_exactly(rows: int, width: int, inner: int, activation: Activation) -> None:
    """All that comes before the last rounding is exact: signs times whole numbers, and gates that are wide open."""
    rng = np.random.default_rng(0)
    normed = rng.choice([-1, 1], (rows, width))
    normed[:, 0] = 1
    norm = rng.integers(1, 9, width).astype(np.float32)
    norm[0] = 128
    gate_up = rng.integers(-8, 9, (2 * inner, width)).astype(np.float32) / 64
    gate_up[:, 0] = rng.integers(64, 97, 2 * inner)
    gate_up[inner:, 0] *= rng.choice([-1, 1], inner)
    down = rng.integers(-127, 128, (width, inner)).astype(np.float32) / 8
    assert NATIVE is not None
    assert NATIVE.feed_forward8 is not None

    part = NATIVE.feed_forward8(torch.from_numpy(norm), 0.0, bf16(gate_up), bf16(down), activation)
    stream = torch.from_numpy(normed.astype(np.float32)) - 3
    got = part(stream, torch.full((rows, width), 3.0).bfloat16())

    gate, up = np.split(product(normed * norm, gate_up), 2, axis=1)
    assert gate.min() > 1000
    assert np.abs(up).min() > 1000
    wanted = product(bf16(gate * up).float().numpy(), down)
    assert torch.equal(got, bf16(wanted))


def product(x: Floats, weight: Floats) -> Numbers:
    (codes, scales), (weight_codes, weight_scales) = rounded(x), rounded(weight)
    sums = (codes @ weight_codes.T).astype(np.float32)
    return sums * (weight_scales / np.float32(64)).T * scales


def rounded(rows: Floats) -> tuple[npt.NDArray[np.int64], Numbers]:
    """Codes of turned rows, and scales that lack the 1/8 of the turn."""
    padded = np.pad(rows.astype(np.float64), ((0, 0), (0, -rows.shape[1] % 64)))
    turned = (padded.reshape(-1, 64) @ SIGNS).reshape(padded.shape)
    assert np.array_equal(turned, turned.astype(np.float32))
    largest = np.abs(turned).max(axis=1, keepdims=True).astype(np.float32)
    codes = np.rint(turned.astype(np.float32) * (np.float32(127) / largest))
    return codes.astype(np.int64), largest / np.float32(127)


def bf16(numbers: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, np.float32)).bfloat16()


def test_a_row_of_zeros_gives_zeros() -> None:
    assert NATIVE is not None
    assert NATIVE.feed_forward8 is not None
    part = NATIVE.feed_forward8(
        torch.ones(70), 1e-5, torch.ones(8, 70).bfloat16(), torch.zeros(70, 4).bfloat16(), "silu"
    )

    assert part(torch.zeros(3, 70), torch.zeros(3, 70).bfloat16()).eq(0).all()


# name: the file, what stands in it, what takes its place
BUGS = {
    "other signs for weights": ("rounded.h", "turned[k + half] = first - second", "turned[k + half] = second - first"),
    "other signs for rows": ("rounded.h", "_mm512_sub_ps(b, d), per_unit", "_mm512_sub_ps(d, b), per_unit"),
    "one kind of turn": ("rounded.h", "(odd + kind * (k / 16)) % 2", "odd"),
    "forget the second half of inputs": ("rounded.h", "_tile_dpbf16ps(2, 5, 6);", ""),
    "read a half that is not there": ("rounded.h", "2 * s + 1 < steps, turned", "1, turned"),
    "count half of the sums": (
        "rounded.h",
        "larger(larger(largest[r], at, at + 32), at + 16, at + 48)",
        "larger(largest[r], at, at + 32)",
    ),
    "codes of 16 rows for all": ("rounded.h", "* STEP8 + (row + r) % 32 * 64", "* STEP8 + r * 64"),
    "round towards zero": ("rounded.h", "_mm512_cvtps_epi32(_mm512_mul_ps", "_mm512_cvttps_epi32(_mm512_mul_ps"),
    "the scale of another row": ("feed_forward8.c", "t.row_scales[first + r]", "t.row_scales[first]"),
    "the scales of one tile for both": (
        "feed_forward8.c",
        "_mm512_loadu_ps(t.scales + 16)",
        "_mm512_loadu_ps(t.scales)",
    ),
    "forget the sums of the first inputs": ("feed_forward8.c", "now, sums, s > 0,", "now, sums, 0,"),
    "swap gate and up": ("feed_forward8.c", "open_gate8(low, high,", "open_gate8(high, low,"),
    "write half of the rows": ("feed_forward8.c", "least(32, rows - g * 32)", "least(16, rows - g * 32)"),
    "the first block of rows again": (
        "feed_forward8.c",
        "pack_row(l, w.block, row, low + row)",
        "pack_row(l, w.block, row, row)",
    ),
    "round some inner rows only": (
        "feed_forward8.c",
        "row < rows; row += 16) round_rows(w.inner",
        "row < 16; row += 16) round_rows(w.inner",
    ),
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
        assert load_feed_forward8(library, NativeLinear(library)) is None
    assert "native feed-forward parts in 8 bits disagree with whole-number products" in caplog.text


def test_linear_layers_are_used_without_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("kernels.native.feed_forward8._agrees", lambda *_: False)

    with caplog.at_level(logging.WARNING):
        native = load_native_ops()

        assert native is not None
        assert native.linear is not None
        assert native.feed_forward8 is None
    assert "native feed-forward parts in 8 bits disagree with whole-number products" in caplog.text


def test_without_linear_layers_there_is_none() -> None:
    assert load_feed_forward8(ctypes.CDLL(None), None) is None
