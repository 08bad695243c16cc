"""The bytes of K and V."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import DeviceError
from engine.host import free_host_memory
from engine.model_config import ModelConfig

# a sidecar shares its host with a retriever; a GPU is its own, less what a step works in
_SHARE_OF_FREE_MEMORY = {"cpu": 0.25, "cuda": 0.85}


class KvPool:
    """Slots for keys and values, ``[L, H_kv, S, D]`` each; slot = block id × block size + offset.

    One layer and head is a matrix of all its slots, so a block is ``[block_size, D]`` in one
    piece for a kernel, and a run of neighbouring blocks is a matrix view.
    """

    def __init__(
        self, config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_layers, config.num_kv_heads, num_blocks * block_size, config.head_dim)
        self.keys: Tensor = torch.empty(shape, dtype=dtype, device=device)
        self.values: Tensor = torch.empty(shape, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, ``[H_kv, S, D]`` views."""
        return self.keys[index], self.values[index]


def count_blocks(model: ModelConfig, config: EngineConfig, *, element_bytes: int, free_bytes: int) -> int:
    """How many blocks the pool gets: what the operator gave, or a share of what is free.

    Raises:
        DeviceError: not even one block fits.
    """
    block_bytes = model.kv_bytes_per_token(element_bytes) * config.block_size
    wanted = (
        config.pool_bytes if config.pool_bytes is not None else int(free_bytes * _SHARE_OF_FREE_MEMORY[config.device])
    )
    if wanted < block_bytes:
        raise DeviceError(f"the KV pool has {wanted} bytes; one block of {config.block_size} tokens is {block_bytes}")
    return wanted // block_bytes


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still take on ``device``.

    For the CPU the host's, or the container's if that is less.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_memory()
