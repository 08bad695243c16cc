"""The bytes of K and V."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import DeviceError
from engine.host import free_host_memory
from engine.model_config import ModelConfig
from kernels.api import CODE_LIMIT, PoolHalf, QuantisedPool

# a sidecar shares its host with a retriever; a GPU is its own, less what a step works in
_SHARE_OF_FREE_MEMORY = {"cpu": 0.25, "cuda": 0.85}


class KvPool:
    """Slots for keys and values, ``[L, H_kv, S, D]`` each; slot = block id × block size + offset.

    One layer and head is a matrix of all its slots, so a block is ``[block_size, D]`` in one
    piece for a kernel, and a run of neighbouring blocks is a matrix view.

    Args:
        dtype: Of the numbers, or of 8-bit codes (:data:`kernels.api.CODE_LIMIT`); codes have
            float32 scales ``[L, H_kv, S]`` beside them.
    """

    def __init__(
        self, config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_layers, config.num_kv_heads, num_blocks * block_size, config.head_dim)
        self.keys: Tensor = torch.empty(shape, dtype=dtype, device=device)
        self.values: Tensor = torch.empty(shape, dtype=dtype, device=device)
        self.scales: tuple[Tensor, Tensor] | None = None
        if dtype in CODE_LIMIT:
            keys, values = (torch.empty(shape[:3], dtype=torch.float32, device=device) for _ in range(2))
            self.scales = keys, values

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.keys, self.values, *(self.scales or ())))

    @property
    def num_slots(self) -> int:
        return self.keys.shape[2]

    def layer(self, index: int) -> tuple[PoolHalf, PoolHalf]:
        """Keys and values of one layer, ``[H_kv, S, D]`` views."""
        keys, values = self.keys[index], self.values[index]
        if self.scales is None:
            return keys, values
        key_scales, value_scales = self.scales
        return (
            QuantisedPool(codes=keys, scales=key_scales[index]),
            QuantisedPool(codes=values, scales=value_scales[index]),
        )


def count_blocks(model: ModelConfig, config: EngineConfig, *, free_bytes: int) -> int:
    """How many blocks the pool gets: what the operator gave, or a share of what is free.

    Raises:
        DeviceError: not even one block fits, or less memory is free than the operator gave. A CPU's
            would be taken page by page as the pool fills, and end the process then.
    """
    block_bytes = model.kv_bytes_per_token(*config.kv_widths) * config.block_size
    wanted = (
        config.pool_bytes if config.pool_bytes is not None else int(free_bytes * _SHARE_OF_FREE_MEMORY[config.device])
    )
    if wanted > free_bytes:
        where = "GPU" if config.device == "cuda" else "host"
        raise DeviceError(f"pool_bytes is {wanted}; {free_bytes} bytes of the {where} are free beside the weights")
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
