"""Linear layers and the head in C give a row the same bits in every step, whatever other rows are in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.api import KernelInputError
from kernels.cpu import CpuKernels
from kernels.native import load_native_ops
from kernels.weights import dense
from tests.kernels.cases import coded_weight
from tests.kernels.libraries import moved

NATIVE = load_native_ops()
pytestmark = pytest.mark.skipif(NATIVE is None or NATIVE.linear is None, reason="no AMX or no C compiler here")

ROWS = 700
# more inputs than stay in the first-level cache; no whole tile of inputs, of inner or of outputs
IN, INNER, OUT = 870, 1010, 90
IN_32, INNER_32 = 864, 992  # of codes: whole blocks of them
IN_8, INNER_8 = 1700, 90  # in 8 bits twice as many inputs stay there
# within a tile of 16 rows, at its edge, few enough for threads to share the outputs or not
PARTS = ((0, 1), (7, 23), (16, 48), (100, 228), (100, 229), (3, 690))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return CpuKernels(NATIVE)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    x, linear = (
        random(ROWS, IN, dtype=torch.bfloat16),
        kernels.pack_linear(random(OUT, IN, dtype=torch.bfloat16), random(OUT, dtype=torch.bfloat16)),
    )
    return lambda rows: linear(x[rows])


def of_codes(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    stream, update = random(ROWS, IN_32), random(ROWS, IN_32, seed=1, dtype=torch.bfloat16)
    gate_up, down = coded_weight(2 * INNER_32, IN_32, bits=4), coded_weight(IN_32, INNER_32, bits=8)
    whole = kernels.pack_feed_forward(random(IN_32), 1e-5, gate_up, down, "silu")
    return lambda rows: whole(stream[rows].clone(), update[rows])


def normed(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    stream, update = random(ROWS, IN), random(ROWS, IN, seed=1, dtype=torch.bfloat16)
    linear = kernels.pack_normed_linear(random(IN), 1e-5, random(OUT, IN, dtype=torch.bfloat16))
    return lambda rows: linear(stream[rows].clone(), update[rows])


def feed_forward(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    stream, update = random(ROWS, IN), random(ROWS, IN, seed=1, dtype=torch.bfloat16)
    gate_up, down = random(2 * INNER, IN, dtype=torch.bfloat16), random(IN, INNER, dtype=torch.bfloat16)
    whole = kernels.pack_feed_forward(random(IN), 1e-5, gate_up, down, "silu")
    return lambda rows: whole(stream[rows].clone(), update[rows])


def in_8_bits(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    stream, update = random(ROWS, IN_8), random(ROWS, IN_8, seed=1, dtype=torch.bfloat16)
    gate_up, down = random(2 * INNER_8, IN_8, dtype=torch.bfloat16), random(IN_8, INNER_8, dtype=torch.bfloat16)
    whole = kernels.pack_feed_forward(random(IN_8), 1e-5, gate_up, down, "silu", int8=True)
    return lambda rows: whole(stream[rows].clone(), update[rows])


def denominator(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    hidden, head = random(ROWS, 90), random(2100, 90, dtype=torch.bfloat16)
    return lambda rows: kernels.log_sum_exp(hidden[rows], head)


def all_logits(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    hidden, head = random(ROWS, 90), random(1100, 90, dtype=torch.bfloat16)
    return lambda rows: kernels.vocabulary_logits(hidden[rows], head)


def labels(kernels: CpuKernels) -> Callable[[slice], Tensor]:
    hidden, head = random(ROWS, 96), random(2100, 96, dtype=torch.bfloat16)
    ids = torch.arange(3 * ROWS).view(ROWS, 3)
    return lambda rows: kernels.label_logits(hidden[rows], head, ids[rows])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "operation", [plain, of_codes, normed, feed_forward, in_8_bits, denominator, all_logits, labels]
)
def test_bits_of_a_row_do_not_depend_on_other_rows_or_threads(
    kernels: CpuKernels, operation: Callable[[CpuKernels], Callable[[slice], Tensor]]
) -> None:
    run = operation(kernels)
    whole = run(slice(None))

    for low, high in PARTS:
        assert torch.equal(run(slice(low, high)), whole[low:high]), (low, high)


@pytest.mark.parametrize(
    "operation", [plain, of_codes, normed, feed_forward, in_8_bits, denominator, all_logits, labels]
)
def test_bits_of_a_row_do_not_depend_on_its_address(
    kernels: CpuKernels,
    operation: Callable[[CpuKernels], Callable[[slice], Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of streams, which an operation changes, rows have other addresses in every part of the test above."""
    wanted = operation(kernels)(slice(0, 33))
    original = random

    for by in range(1, 16):

        def displaced(*shape: int, by: int = by, **options: Any) -> Tensor:
            return moved(original(*shape, **options), by)

        monkeypatch.setattr("tests.kernels.test_native_linear_bits.random", displaced)
        assert torch.equal(operation(kernels)(slice(0, 33)), wanted), by


@pytest.mark.parametrize("operation", [plain, of_codes, normed, feed_forward, in_8_bits, denominator, all_logits])
def test_row_that_is_not_a_number_reaches_no_other(
    kernels: CpuKernels,
    operation: Callable[[CpuKernels], Callable[[slice], Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = operation(kernels)
    clean = run(slice(0, 40))
    monkeypatch.setattr("tests.kernels.test_native_linear_bits.random", with_bad_row)
    found = operation(kernels)(slice(0, 40))

    good = torch.arange(40) != BAD_ROW
    assert torch.equal(found[good], clean[good])
    assert found[BAD_ROW].isnan().all()


BAD_ROW = 17


def with_bad_row(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """As :func:`random`, but one row of what has a row for every token is not a number."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if shape[0] == ROWS:
        numbers[BAD_ROW] = torch.nan
    return numbers


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 64), "x: torch.bfloat16 wanted, got torch.float32"),
        (torch.zeros(3, 60).bfloat16(), r"x: shape \[T, 64\] wanted, got \[3, 60\]"),
        (torch.zeros(64, 3).bfloat16().T, r"x: dense rows wanted, got strides \[1, 3\]"),
    ],
)
def test_what_the_c_code_would_misread_is_refused(kernels: CpuKernels, x: Tensor, message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        kernels.pack_linear(torch.zeros(8, 64).bfloat16())(x)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", [5, 20, 70, 140])
def test_a_coded_weight_beside_one_of_numbers_has_the_bits_of_numbers(kernels: CpuKernels, rows: int) -> None:
    stream, update = random(rows, IN_32), random(rows, IN_32, seed=1, dtype=torch.bfloat16)
    gate_up, down = coded_weight(2 * INNER_32, IN_32, bits=4), coded_weight(IN_32, INNER_32, bits=4)
    numbers = dense(gate_up), dense(down)

    wanted, *got = (
        kernels.pack_feed_forward(random(IN_32), 1e-5, first, second, "silu")(stream.clone(), update)
        for first, second in (numbers, (gate_up, numbers[1]), (numbers[0], down))
    )

    assert all(torch.equal(mixed, wanted) for mixed in got)
