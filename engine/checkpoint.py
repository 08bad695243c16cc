"""A checkpoint on disk, turned into weights that the forward pass reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from engine.adapter import AdapterFiles, find_adapter, merge_adapter
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
        revision: Hash of the content of every file of the checkpoint and its adapter, 16 hex digits.
            Neither the place nor the names of the files count, nor the dtype that was asked for.
        name: The folder's name, the repository's in a hub cache, or the stem of a GGUF file;
            with an adapter, ``+`` and the name of that.
    """

    config: ModelConfig
    weights: ModelWeights
    revision: str
    name: str


def load_checkpoint(path: Path, dtype: torch.dtype, *, adapter: Path | None = None) -> Checkpoint:
    """Load the model at ``path``, a ``.gguf`` file or a folder, into host memory.

    Every tensor of the files is used exactly once and every parameter is filled. Peak memory
    is the model in ``dtype`` and one tensor, plus pages of the files that the system may drop.

    Args:
        dtype: Type of all weights but norms, whatever types the files hold.
        adapter: Folder of a LoRA adapter, merged into the weights.

    Raises:
        CheckpointError: the files do not make up a supported model or adapter, or ``dtype`` is
            neither bfloat16 nor float32.
    """
    if dtype not in (torch.bfloat16, torch.float32):
        # activations of models trained in bfloat16 exceed 65504, the largest float16
        raise CheckpointError(f"weights cannot be loaded as {dtype}; supported: torch.bfloat16, torch.float32")
    files = find_checkpoint_files(path)
    adapter_files = None if adapter is None else find_adapter(adapter)
    try:
        if isinstance(files, GgufFiles):
            header = read_gguf_header(files.gguf)
            config = gguf_model_config(header)
            # an adapter is added to numbers, and its sum has no codes; in float32 a judge reads numbers
            coded = dtype == torch.bfloat16 and adapter_files is None
            weights = load_gguf(header, config, dtype, coded=coded)
        else:
            config = read_model_config(files)
            weights = load_safetensors(files, config, dtype)
        revision = _revision(files, adapter_files)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if adapter_files is None:
        return Checkpoint(config=config, weights=weights, revision=revision, name=files.name)
    merge_adapter(weights, config, adapter_files)
    name = f"{files.name}+{adapter_files.name}"
    return Checkpoint(config=config, weights=weights, revision=revision, name=name)


def _revision(files: CheckpointFiles, adapter: AdapterFiles | None) -> str:
    whole = hashlib.sha256()
    for path in files.all_files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    if adapter is not None:
        whole.update(adapter.digest)
    return whole.hexdigest()[:_REVISION_DIGITS]
