from __future__ import annotations

import torch

from kernels.weights import CodedWeight, dense


def coded(*, scale: float = 0.5) -> CodedWeight:
    """Two rows of two blocks; the codes count up."""
    codes = torch.arange(128, dtype=torch.int8).view(2, 64)
    scales = torch.tensor([[scale, 1.0], [2.0, 4.0]])
    offsets = torch.tensor([[0.0, -1.0], [-2.0, 0.25]])
    return CodedWeight(codes=codes, scales=scales, offsets=offsets, bits=8, dtype=torch.bfloat16)


def test_number_is_scale_times_code_plus_offset_rounded_to_the_dtype() -> None:
    weight = coded()
    numbers = dense(weight)

    assert (numbers.dtype, numbers.shape, weight.shape) == (torch.bfloat16, (2, 64), (2, 64))
    assert numbers[0, 3] == 1.5
    assert numbers[0, 32] == 31.0
    assert numbers[1, 1] == 2.0 * 65 - 2.0
    assert numbers[1, 63] == torch.tensor(4.0 * 127 + 0.25).bfloat16()


def test_some_rows_stand_for_the_same_rows() -> None:
    assert torch.equal(dense(coded()[1:]), dense(coded())[1:])


def test_numbers_stand_for_themselves() -> None:
    numbers = torch.ones(2, 3)
    assert dense(numbers) is numbers


def test_bytes_depend_on_whether_scales_fit_16_bits() -> None:
    assert coded().nbytes == 128 + 8 * 2
    assert coded(scale=1 / 3).nbytes == 128 + 8 * 4
