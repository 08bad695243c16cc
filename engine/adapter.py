"""A low-rank adapter (Hu et al. 2021, LoRA) in the format of PEFT, merged into the weights that it changes."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint_files import folder_name, read_json_object
from engine.checkpoint_safetensors import decoder_name, hf_slots
from engine.config_fields import Fields
from engine.errors import CheckpointError
from engine.model_config import ModelConfig
from engine.weight_slots import Slot
from engine.weights import ModelWeights

_CONFIG: Final = "adapter_config.json"
_TENSORS: Final = "adapter_model.safetensors"
_FACTOR: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")

# Fields that describe training or storage, or repeat what the names of the tensors say.
_NEUTRAL: Final = frozenset({
    "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "inference_mode", "init_lora_weights",
    "layers_pattern", "layers_to_transform", "lora_dropout", "peft_version", "qalora_group_size", "revision",
    "target_modules", "task_type",
})  # fmt: skip

# Fields that ask for something other than adding a product of two matrices, with the values at which they do not.
_INERT: Final[Mapping[str, tuple[object, ...]]] = {
    "alora_invocation_tokens": (None,),
    "alpha_pattern": ({}, None),
    "arrow_config": (None,),
    "auto_mapping": (None,),
    "bias": ("none",),
    "corda_config": (None,),
    "eva_config": (None,),
    "fan_in_fan_out": (False,),
    "layer_replication": (None,),
    "loftq_config": ({}, None),
    "lora_bias": (False,),
    "megatron_config": (None,),
    "megatron_core": ("megatron.core", None),
    "modules_to_save": (None, []),
    "peft_type": ("LORA",),
    "rank_pattern": ({}, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_dora": (False,),
    "use_qalora": (False,),
}
# Ways to start training that change the base model too, so that the file alone does not say what to add.
_CHANGES_BASE: Final = ("corda", "loftq", "olora", "pissa")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """An adapter on disk.

    Args:
        digest: SHA-256 of the content of its files; neither their place nor their names count.
    """

    name: str
    config: Path
    tensors: Path
    digest: bytes


def find_adapter(folder: Path) -> AdapterFiles:
    """The files of the adapter in ``folder``.

    Raises:
        CheckpointError: a file is missing or cannot be read.
    """
    config, tensors = folder / _CONFIG, folder / _TENSORS
    whole = hashlib.sha256()
    for path in (config, tensors):
        try:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise CheckpointError(f"the adapter's {path} cannot be read: {error.strerror}") from error
    return AdapterFiles(name=folder_name(folder), config=config, tensors=tensors, digest=whole.digest())


def merge_adapter(weights: ModelWeights, config: ModelConfig, files: AdapterFiles) -> None:
    """Add to each weight that the adapter names its product of two matrices, in place.

    Worked out in float32 and rounded once, to the dtype of the weight.

    Raises:
        CheckpointError: the adapter is of another kind, names something that the model has not,
            or has tensors of the wrong shape.
    """
    rank, scale = _rank_and_scale(files.config)
    slots = hf_slots(weights, config)
    for module, (down, up) in _factors(files.tensors).items():
        inner = decoder_name(module, config)
        slot = None if inner is None else slots.get(f"{inner}.weight")
        if slot is None or slot.view.dim() != 2:
            raise CheckpointError(f"{files.tensors} changes {module}, which this model has not")
        _check_shapes(module, down, up, slot, rank, files.tensors)
        slot.tensor.copy_(slot.tensor.float().addmm_(up.float(), down.float(), alpha=scale))


def _rank_and_scale(path: Path) -> tuple[int, float]:
    fields = Fields(read_json_object(path), str(path))
    rank, alpha = fields.size("r"), fields.positive("lora_alpha")
    by_root = fields.flag("use_rslora", default=False)
    start = fields.take("init_lora_weights", default=True)
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise fields.wrong("init_lora_weights", start, "an adapter that leaves the base model as it is is needed")
    fields.refuse_rest(neutral=_NEUTRAL, inert=_INERT)
    return rank, alpha / (math.sqrt(rank) if by_root else rank)


def _factors(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Both matrices of every module that the file changes, ``[rank, in]`` and ``[out, rank]``."""
    found: dict[str, dict[str, Any]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                match = _FACTOR.fullmatch(name)
                if match is None:
                    raise CheckpointError(f"{path}: tensor {name} is no factor of a LoRA adapter")
                found.setdefault(match["module"], {})[match["factor"]] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is cut short or no safetensors file: {error}") from error
    if not found:
        raise CheckpointError(f"{path} holds no tensors")
    for module, factors in found.items():
        if factors.keys() != {"A", "B"}:
            raise CheckpointError(f"{path}: {module} has lora_{next(iter(factors))} only; A and B are needed")
    return {module: (factors["A"], factors["B"]) for module, factors in found.items()}


def _check_shapes(module: str, down: Tensor, up: Tensor, slot: Slot, rank: int, path: Path) -> None:
    rows, columns = slot.view.shape
    for name, found, wanted in (("A", down, (rank, columns)), ("B", up, (rows, rank))):
        if tuple(found.shape) != wanted or not found.dtype.is_floating_point:
            got = f"{found.dtype} {list(found.shape)}"
            raise CheckpointError(f"{path}: lora_{name} of {module} is {got}; {list(wanted)} in floats are needed")
