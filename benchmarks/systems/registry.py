"""Which code drives which system; each is imported only when it is made."""

from __future__ import annotations

import importlib
from typing import Final, cast

from benchmarks.messages import Start
from benchmarks.systems.contract import System

_CLASSES: Final = {
    "ours": ("benchmarks.systems.ours", "Ours"),
    "ours-http": ("benchmarks.systems.ours_http", "OursOverHttp"),
    "hf-pad": ("benchmarks.systems.hf", "PaddedBatches"),
    "hf-prefix": ("benchmarks.systems.hf", "SharedPrefix"),
    "llamacpp": ("benchmarks.systems.peers", "LlamaCpp"),
    "vllm": ("benchmarks.systems.peers", "Vllm"),
}


def make_system(start: Start, labels: tuple[int, int]) -> System:
    """Load the system that ``start`` names.

    Args:
        labels: Ids whose logits are compared.

    Raises:
        ValueError: there is no system of that name.
    """
    if start.system not in _CLASSES:
        raise ValueError(f"no system is driven by {start.system!r}, only by {', '.join(_CLASSES)}")
    module, name = _CLASSES[start.system]
    return cast(System, getattr(importlib.import_module(module), name)(start, labels))
