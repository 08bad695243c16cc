"""The arithmetic of memory: what a model's weights and KV take, and how much text that keeps warm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from engine.model_config import ModelConfig

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SIZE: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]i?B?|B)?\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What fits into ``memory_bytes``. Activations and the process itself are not counted.

    Args:
        num_blocks: Blocks of KV that fit beside the weights.
        prefix_blocks: Blocks of a prefix that all documents share, held once.
        document_blocks: Blocks of one document; each document starts in a block of its own.
        num_documents: Documents that are warm at the same time, beside the prefix.
    """

    memory_bytes: int
    weight_bytes: int
    block_bytes: int
    num_blocks: int
    num_tokens: int
    prefix_blocks: int
    document_blocks: int
    num_documents: int


def plan_memory(
    config: ModelConfig,
    *,
    memory_bytes: int,
    element_bytes: int,
    token_bytes: int,
    block_size: int,
    document_tokens: int,
    prefix_tokens: int,
) -> MemoryPlan:
    """Divide ``memory_bytes`` between weights and KV blocks, and the blocks between texts.

    Args:
        element_bytes: Of one weight.
        token_bytes: K and V of one token in all layers.

    Raises:
        ValueError: the weights alone do not fit.
    """
    weight_bytes = config.num_parameters * element_bytes
    if weight_bytes > memory_bytes:
        raise ValueError(f"the weights take {format_bytes(weight_bytes)}; only {format_bytes(memory_bytes)} are given")
    block_bytes = block_size * token_bytes
    num_blocks = (memory_bytes - weight_bytes) // block_bytes
    prefix_blocks, document_blocks = -(-prefix_tokens // block_size), -(-document_tokens // block_size)
    return MemoryPlan(
        memory_bytes=memory_bytes,
        weight_bytes=weight_bytes,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        num_tokens=num_blocks * block_size,
        prefix_blocks=prefix_blocks,
        document_blocks=document_blocks,
        num_documents=max(0, num_blocks - prefix_blocks) // document_blocks,
    )


def parse_bytes(text: str) -> int:
    """Bytes in a text such as ``8GiB``, ``512 MiB`` or ``1000000``.

    Units count in powers of 1024, also when written ``8G`` or ``8GB``.

    Raises:
        ValueError: the text is no such size, or comes to less than one byte.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size; write a number and B, KiB, MiB, GiB or TiB, such as 8GiB")
    number, unit = match.group(1), (match.group(2) or "B").upper()
    num_bytes = int(Fraction(number) * 1024 ** "BKMGT".index(unit[0]))
    if num_bytes < 1:
        raise ValueError(f"{text!r} is less than one byte")
    return num_bytes


def format_bytes(num_bytes: int) -> str:
    """``num_bytes`` in the greatest binary unit of which it has at least one, to one decimal."""
    power = min(max(num_bytes, 1).bit_length() - 1, 10 * (len(_UNITS) - 1)) // 10
    return f"{num_bytes / 1024**power:,.1f}".removesuffix(".0") + f" {_UNITS[power]}"
