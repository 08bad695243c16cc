from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.device_loss import is_device_lost

CUDA = torch.device("cuda", 0)


def of_cuda(code: int) -> torch.AcceleratorError:
    """As PyTorch raises it."""
    error = torch.AcceleratorError("CUDA error: something")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], list[torch.device]]:
    """Has the device answer with an error, or finish; gives the devices that were asked."""

    def set_answer(error: Exception | None) -> list[torch.device]:
        asked: list[torch.device] = []

        def synchronize(device: torch.device) -> None:
            asked.append(device)
            if error is not None:
                raise error

        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        return asked

    return set_answer


@pytest.mark.parametrize("code", [214, 700, 710, 719])
def test_b036_some_errors_say_themselves_that_the_device_is_lost(code: int) -> None:
    assert is_device_lost(torch.device("cpu"), of_cuda(code))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("Triton Error [CUDA]"), of_cuda(701)])
def test_a_device_that_still_finishes_its_work_is_not_lost(
    answer: Callable[[Exception | None], list[torch.device]], error: Exception
) -> None:
    asked = answer(None)

    assert not is_device_lost(CUDA, error)
    assert asked == [CUDA]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("Triton Error [CUDA]"), ArithmeticError()])
def test_b036_one_that_fails_whatever_it_is_asked_is_lost(
    answer: Callable[[Exception | None], list[torch.device]], error: Exception
) -> None:
    answer(RuntimeError("CUDA error: an illegal memory access was encountered"))

    assert is_device_lost(CUDA, error)


def test_a_cpu_is_never_lost_by_an_ordinary_error(
    answer: Callable[[Exception | None], list[torch.device]],
) -> None:
    asked = answer(RuntimeError("there is no device"))

    assert not is_device_lost(torch.device("cpu"), torch.OutOfMemoryError())
    assert asked == []
