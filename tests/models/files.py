"""What ``make test-models`` fetches, and where tests find it.

Gemma 3 270M is under the Gemma terms of use, which forbid passing it on without them: it is
fetched for tests and is no part of anything that is built here. Qwen3's tokenizer is Apache-2.0.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scorer.fetch import models_dir


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file in a folder of its model, below the folder of fetched models."""

    folder: str
    name: str
    sha256: str

    @property
    def path(self) -> Path:
        return models_dir(os.environ) / "test-only" / self.folder / self.name

    def is_whole(self) -> bool:
        """Whether it is there, with the content that is meant."""
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


GEMMA3: Final = ModelFile(
    "gemma-3-270m",
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
QWEN3_TOKENIZER: Final = ModelFile(
    "qwen3-tokenizer",
    "tokenizer.json",
    "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
)
QWEN3_TOKENIZER_CONFIG: Final = ModelFile(
    "qwen3-tokenizer",
    "tokenizer_config.json",
    "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
)
