"""Which files make up a checkpoint, and the decoder they describe. Reads no weights, needs no torch."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from gguf import GGMLQuantizationType

from engine.errors import CheckpointError
from engine.families import config_from_gguf, config_from_hf
from engine.gguf_file import GgufHeader, read_gguf_header
from engine.model_config import ModelConfig

GGUF_HEAD: Final = "output.weight"
GGUF_ROTARY_DIVISORS: Final = "rope_freqs.weight"
_CONFIG: Final = "config.json"
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFiles:
    """A folder in the layout of ``transformers``.

    Args:
        shard_of: Shard that should hold each tensor, from the index; None for a single file.
    """

    name: str
    config: Path
    shards: tuple[Path, ...]
    index: Path | None = None
    shard_of: Mapping[str, Path] | None = None

    @property
    def all_files(self) -> tuple[Path, ...]:
        return (self.config, *((self.index,) if self.index else ()), *self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFiles:
    name: str
    gguf: Path

    @property
    def all_files(self) -> tuple[Path, ...]:
        return (self.gguf,)


CheckpointFiles: TypeAlias = SafetensorsFiles | GgufFiles


def find_checkpoint_files(path: Path) -> CheckpointFiles:
    """The files of the checkpoint at ``path``: a ``.gguf`` file, or a folder.

    A folder holds ``config.json`` with ``model.safetensors`` or with the shards that
    ``model.safetensors.index.json`` lists; failing any safetensors file, exactly one ``.gguf``.

    Raises:
        CheckpointError: nothing is there, a file of the checkpoint is missing, or it is not
            clear which files are meant.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path} is not a .gguf file; a model is such a file or a folder")
        return GgufFiles(name=path.stem, gguf=path)
    if not path.is_dir():
        raise CheckpointError(f"{path} does not exist")
    if any(path.glob("*.safetensors")) or (path / _INDEX).exists():
        return _safetensors_files(path)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return GgufFiles(name=folder_name(path), gguf=ggufs[0])
    if ggufs:
        names = ", ".join(file.name for file in ggufs)
        raise CheckpointError(f"{path} holds {len(ggufs)} GGUF files ({names}); pass one of them")
    there = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
    raise CheckpointError(f"{path} holds neither {_SINGLE}, {_INDEX} nor a .gguf file; it holds {there}")


def read_model_config(files: CheckpointFiles) -> ModelConfig:
    """The decoder that the files describe.

    Raises:
        CheckpointError: see :mod:`engine.families`.
    """
    if isinstance(files, GgufFiles):
        return gguf_model_config(read_gguf_header(files.gguf))
    return config_from_hf(read_json_object(files.config), str(files.config))


def gguf_model_config(header: GgufHeader) -> ModelConfig:
    """The decoder that an already parsed GGUF header describes.

    Raises:
        CheckpointError: see :mod:`engine.families`.
    """
    return config_from_gguf(
        header.metadata,
        str(header.path),
        has_head=GGUF_HEAD in header.tensors,
        rotary_divisors=_rotary_divisors(header),
    )


def _rotary_divisors(header: GgufHeader) -> tuple[float, ...] | None:
    """What Llama 3.1 and later divide their rotary frequencies by: a small tensor, not a field."""
    tensor = header.tensors.get(GGUF_ROTARY_DIVISORS)
    if tensor is None:
        return None
    if tensor.encoding is not GGMLQuantizationType.F32 or len(tensor.shape) != 1:
        raise CheckpointError(
            f"{header.path}: tensor {tensor.name} has encoding {tensor.encoding.name} and shape {list(tensor.shape)}; "
            "one row in F32 is needed"
        )
    with header.path.open("rb") as file:
        file.seek(tensor.offset)
        divisors = struct.unpack(f"<{tensor.shape[0]}f", file.read(tensor.num_bytes))
    if not all(0 < divisor < math.inf for divisor in divisors):
        raise CheckpointError(f"{header.path}: tensor {tensor.name} holds {divisors}; positive numbers are needed")
    return divisors


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint.

    Raises:
        CheckpointError: the file is missing, is not JSON, or holds something else.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}; an object is needed")
    return value


def _safetensors_files(folder: Path) -> SafetensorsFiles:
    single, index, config = folder / _SINGLE, folder / _INDEX, folder / _CONFIG
    if not config.is_file():
        raise CheckpointError(f"{config} is missing")
    if single.is_file() and index.is_file():
        raise CheckpointError(f"{folder} holds both {_SINGLE} and {_INDEX}; remove the one that is not meant")
    name = folder_name(folder)
    if single.is_symlink() and not single.exists():
        raise CheckpointError(f"{single} links to {single.readlink()}, which is missing")
    if single.is_file():
        return SafetensorsFiles(name=name, config=config, shards=(single,))
    if not index.is_file():
        others = ", ".join(sorted(file.name for file in folder.glob("*.safetensors")))
        raise CheckpointError(f"{folder} holds {others} but neither {_SINGLE} nor {_INDEX}")
    shard_of = _shards_by_tensor(folder, index)
    shards = tuple(sorted(set(shard_of.values())))
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f"{shard} is missing; {_INDEX} lists it")
    return SafetensorsFiles(name=name, config=config, shards=shards, index=index, shard_of=shard_of)


def _shards_by_tensor(folder: Path, index: Path) -> dict[str, Path]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise CheckpointError(f"{index}: {tensor} is in {shard!r}; the name of a .safetensors file is needed")
    return {tensor: folder / shard for tensor, shard in weight_map.items()}


def folder_name(folder: Path) -> str:
    """The folder's name; ``ORG/NAME`` for a snapshot in the cache of the Hugging Face hub."""
    folder = folder.absolute()
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return folder.name
