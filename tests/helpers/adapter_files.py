"""LoRA adapters, written as PEFT writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

RANK = 3
# as PEFT 0.17 writes it
CONFIG: dict[str, Any] = {
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "some/model",
    "bias": "none",
    "corda_config": None,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 6,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": RANK,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj", "down_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}


def every_module(model: PreTrainedModel) -> list[str]:
    """All matrices of all layers."""
    return [name.removesuffix(".weight") for name, _ in model.named_parameters() if name.endswith("_proj.weight")]


def write_adapter(folder: Path, model: PreTrainedModel, modules: list[str], **changes: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    rng = torch.Generator().manual_seed(1)
    tensors = {}
    for module in modules:
        rows, columns = model.get_parameter(f"{module}.weight").shape
        at = f"base_model.model.{module}"
        tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, columns, generator=rng)
        tensors[f"{at}.lora_B.weight"] = torch.randn(rows, RANK, generator=rng) / 10
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
