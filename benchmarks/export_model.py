"""The default model as a bfloat16 folder, for peers that read no GGUF: ``python -m benchmarks.export_model FOLDER``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from benchmarks.systems.hf import load_model
from engine.checkpoint_files import GgufFiles, find_checkpoint_files
from scorer.fetch import DEFAULT_MODEL, find_model


def main(arguments: Sequence[str]) -> int:
    """Write weights, config and tokenizer to the folder that is named."""
    if len(arguments) not in (1, 2):
        print("usage: python -m benchmarks.export_model FOLDER [MODEL]", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    path = find_model(arguments[1] if len(arguments) > 1 else DEFAULT_MODEL.name, os.environ)
    files = find_checkpoint_files(path)
    if not isinstance(files, GgufFiles):
        print(f"{path} is a folder that every peer reads as it is", file=sys.stderr)
        return 2
    model = load_model(path, torch.bfloat16)
    # what was read packed is plain now, and must not be announced as packed
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(files.gguf.parent, gguf_file=files.gguf.name)
    tokenizer.save_pretrained(folder)
    print(f"{folder} holds {path.name} in bfloat16")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
