"""How ``transformers``, the judge of what we read from GGUF files, reads them in less time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np


class _Reader(gguf.GGUFReader):
    """Takes slices of a plain array: a file has a million, and of a memory map each takes three times as long."""

    def _get(self, *args: Any, **kwargs: Any) -> Any:
        reader: Any = self
        if type(reader.data) is not np.ndarray:
            reader.data = reader.data.view(np.ndarray)
        return super()._get(*args, **kwargs)


@contextmanager
def read_gguf_once() -> Iterator[None]:
    """Let ``transformers`` read a file once in this block, not for each of config, weights and tokenizer."""
    with patch.object(gguf, "GGUFReader", lru_cache(maxsize=1)(_Reader)):
        yield
