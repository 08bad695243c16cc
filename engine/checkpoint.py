"""A checkpoint on disk, turned into weights that the forward pass reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from engine.checkpoint_files import (
    CheckpointFiles,
    GgufFiles,
    find_checkpoint_files,
    gguf_model_config,
    read_model_config,
)
from engine.checkpoint_gguf import load_gguf
from engine.checkpoint_safetensors import load_safetensors
from engine.errors import CheckpointError
from engine.gguf_file import read_gguf_header
from engine.model_config import ModelConfig
from engine.weights import ModelWeights

_REVISION_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model in host memory.

    Args:
        revision: Hash of the content of every file of the checkpoint, 16 hex digits. Neither
            the place nor the names of the files count, nor the dtype that was asked for.
        name: The folder's name, the repository's in a hub cache, or the stem of a GGUF file.
    """

    config: ModelConfig
    weights: ModelWeights
    revision: str
    name: str


def load_checkpoint(path: Path, dtype: torch.dtype) -> Checkpoint:
    """Load the model at ``path``, a ``.gguf`` file or a folder, into host memory.

    Every tensor of the files is used exactly once and every parameter is filled. Peak memory
    is the model in ``dtype`` and one tensor, plus pages of the files that the system may drop.

    Args:
        dtype: Type of all weights, whatever types the files hold.

    Raises:
        CheckpointError: the files do not make up a supported model, or ``dtype`` is neither
            bfloat16 nor float32.
    """
    if dtype not in (torch.bfloat16, torch.float32):
        # activations of models trained in bfloat16 exceed 65504, the largest float16
        raise CheckpointError(f"weights cannot be loaded as {dtype}; supported: torch.bfloat16, torch.float32")
    files = find_checkpoint_files(path)
    try:
        if isinstance(files, GgufFiles):
            header = read_gguf_header(files.gguf)
            config = gguf_model_config(header)
            weights = load_gguf(header, config, dtype)
        else:
            config = read_model_config(files)
            weights = load_safetensors(files, config, dtype)
        revision = _revision(files)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return Checkpoint(config=config, weights=weights, revision=revision, name=files.name)


def _revision(files: CheckpointFiles) -> str:
    whole = hashlib.sha256()
    for path in files.all_files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:_REVISION_DIGITS]
