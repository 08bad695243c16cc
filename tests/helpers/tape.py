"""A recorder for a CPU that is as literal as a CUDA graph.

What is recorded are operations on tensors and launches of interpreted kernels, with the very tensors and
numbers that they were called with. A replay does the same to the same memory and asks no Python code in
between: whatever was decided on the host, in the step that was recorded, stays decided. Memory that
nobody has written yet holds NaN in every replay, as it may after another recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

_HOST_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::masked_select"}
_UNWRITTEN = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"}


class Tape:
    """Implements :class:`engine.replay.Recorder`."""

    def __init__(self) -> None:
        self.num_replays = 0

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        calls: list[Callable[[], object]] = []
        launch = InterpretedFunction.run

        def launch_and_note(kernel: Any, *args: Any, **kwargs: Any) -> None:
            with _disable_current_modes():
                launch(kernel, *args, **kwargs)
            calls.append(lambda: launch(kernel, *args, **kwargs))

        InterpretedFunction.run = launch_and_note
        try:
            with _Notes(calls):
                out = run()
        finally:
            InterpretedFunction.run = launch

        def replay() -> Tensor:
            self.num_replays += 1
            for call in calls:
                call()
            return out

        return replay


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Appends what repeats each operation, in its memory."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        assert name not in _HOST_READS, f"{name} waits for the device"
        out = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._calls.append(lambda: func(*args, **kwargs))
            return out
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        sources = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        fresh = [result for result in results if _memory(result) not in sources]
        if name in _UNWRITTEN:
            self._calls += [_forget(result) for result in fresh]
        elif fresh:
            assert len(fresh) == len(results), f"{name} gives a view and a copy"
            self._calls.append(lambda: _again(func, args, kwargs, results))
        return out


def _again(func: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]) -> None:
    found = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
    for result, again in zip(results, found, strict=True):
        result.copy_(again)


def _forget(result: Tensor) -> Callable[[], object]:
    return lambda: result.fill_(torch.nan) if result.is_floating_point() else result


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
