"""What an operator tells the engine. What the engine works out goes elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Checked when made; never written to.

    Args:
        block_size: Token positions per KV block.
        pool_bytes: Memory for K and V. Where it is not given, a quarter of what is free on a CPU, and
            85 % on a GPU.
        step_tokens: Most new positions in one forward pass.
        max_row_tokens: Longest prompt that is accepted; where it is not given, the model's context.
        max_queued_tokens: New positions that may wait; a single larger task is accepted when
            nothing else waits.
        dtype: Type of weights and activations. ``float32`` is for judging.
        kv_dtype: Type of K and V. ``auto``: as ``dtype``. ``int8`` and ``fp8`` (e4m3) hold them in 8
            bits with a float32 scale per token and head: about twice the tokens in the same
            memory, at no gain in speed and some loss in the scores.
        linear_dtype: Type in which linear layers multiply. ``auto``: ``dtype``. ``int8`` rounds weights and
            inputs of feed-forward parts to 8 bits row by row: faster with AMX, at a loss in the scores, see
            docs/performance.md.
        device: Where weights and KV live. ``cuda`` takes the current CUDA device.
        kernels: Which kernel set runs a step. ``auto``: ``triton`` on CUDA, ``cpu`` on a CPU.
        cuda_graphs: Whether small steps are recorded at start and replayed as one launch each. ``auto``: on a GPU, if
            what is replayed agrees with what is launched; ``off``: never. 512 MiB are left free for them where the
            pool is sized.
        num_threads: Threads of the tensor library; where it is not given, the processors that the process (and
            its container) may use.

    Raises:
        ValueError: a value is out of its range; names the setting, the value and the range.
    """

    block_size: int = 16
    pool_bytes: int | None = None
    step_tokens: int = 2048
    max_row_tokens: int | None = None
    max_queued_tokens: int = 262_144
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    kv_dtype: Literal["auto", "fp8", "int8"] = "auto"
    linear_dtype: Literal["auto", "int8"] = "auto"
    device: Literal["cpu", "cuda"] = "cpu"
    kernels: Literal["auto", "cpu", "triton", "reference"] = "auto"
    cuda_graphs: Literal["auto", "off"] = "auto"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        _in_range("block_size", self.block_size, 1, 1024)
        _in_range("step_tokens", self.step_tokens, 16, 1_048_576)
        _in_range("max_queued_tokens", self.max_queued_tokens, 1, 1 << 40)
        if self.pool_bytes is not None:
            _in_range("pool_bytes", self.pool_bytes, 1, 1 << 50)
        if self.max_row_tokens is not None:
            _in_range("max_row_tokens", self.max_row_tokens, 1, 1 << 24)
        if self.num_threads is not None:
            _in_range("num_threads", self.num_threads, 1, 1024)
        if self.linear_dtype == "int8" and self.dtype != "bfloat16":
            raise ValueError(f"linear_dtype 'int8' goes with dtype 'bfloat16' only; dtype is {self.dtype!r}")
        if (self.device, self.kernels) in {("cuda", "cpu"), ("cuda", "reference")}:
            raise ValueError(f"kernels {self.kernels!r} do not run on device {self.device!r}; use 'triton' or 'auto'")

    @property
    def kv_widths(self) -> tuple[int, int]:
        """Bytes of one number of K or V, and of the scale that the ``head_dim`` numbers of a head share."""
        if self.kv_dtype == "auto":
            return ELEMENT_BYTES[self.dtype], 0
        return 1, _SCALE_BYTES


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be between {low} and {high}")
