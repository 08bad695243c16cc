"""``scorer plan``: how much text a given memory keeps warm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.model_config import ModelConfig
    from scorer.plan import MemoryPlan


@click.command("plan")
@click.argument("model")
@click.option("--memory", metavar="SIZE", help="Memory for weights and KV together, such as 8GiB.")
@click.option("--document-tokens", type=click.IntRange(min=1), default=300, show_default=True)
@click.option(
    "--prefix-tokens",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Length of a prefix that all documents share.",
)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "fp8", "int8"]),
    default="auto",
    show_default=True,
    help="Type of K and V; auto: as --dtype.",
)
@click.option("--block-size", type=click.IntRange(min=1, max=1024), default=16, show_default=True)
def command(
    *,
    model: str,
    memory: str | None,
    document_tokens: int,
    prefix_tokens: int,
    dtype: Literal["bfloat16", "float32"],
    kv_dtype: Literal["auto", "fp8", "int8"],
    block_size: int,
) -> None:
    """Print what MODEL takes and how much text a memory keeps warm.

    MODEL is a path, the name of the default model, or a repository in the Hugging Face cache.
    Only its configuration is read.
    """
    from engine import CheckpointError
    from engine.checkpoint_files import find_checkpoint_files, read_model_config
    from engine.config import ELEMENT_BYTES, EngineConfig
    from scorer.fetch import ModelNotFoundError, find_model
    from scorer.plan import parse_bytes, plan_memory

    settings = EngineConfig(dtype=dtype, kv_dtype=kv_dtype, block_size=block_size)
    try:
        files = find_checkpoint_files(find_model(model, os.environ))
        config = read_model_config(files)
        plan = memory and plan_memory(
            config,
            memory_bytes=parse_bytes(memory),
            element_bytes=ELEMENT_BYTES[dtype],
            token_bytes=config.kv_bytes_per_token(*settings.kv_widths),
            block_size=block_size,
            document_tokens=document_tokens,
            prefix_tokens=prefix_tokens,
        )
    except (CheckpointError, ModelNotFoundError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"model          {files.name}, {config.architecture}, {dtype}")
    for line in _model_lines(config, settings):
        click.echo(line)
    if plan:
        for line in _plan_lines(plan, document_tokens, prefix_tokens):
            click.echo(line)


def _model_lines(config: ModelConfig, settings: EngineConfig) -> list[str]:
    from engine.config import ELEMENT_BYTES
    from scorer.plan import format_bytes

    element_bytes, block_size = ELEMENT_BYTES[settings.dtype], settings.block_size
    weights, per_token = config.num_parameters * element_bytes, config.kv_bytes_per_token(*settings.kv_widths)
    number_bytes, scale_bytes = settings.kv_widths
    head = f"{config.head_dim} head size × {number_bytes} bytes"
    if scale_bytes:
        head = f"({head} + {scale_bytes} bytes of scale)"
    factors = f"2 × {config.num_layers} layers × {config.num_kv_heads} KV heads × {head}"
    return [
        f"weights        {config.num_parameters:,} parameters × {element_bytes} bytes = {format_bytes(weights)}",
        f"KV per token   {factors} = {per_token:,} bytes",
        f"KV per block   {block_size} tokens × {per_token:,} bytes = {format_bytes(block_size * per_token)}",
    ]


def _plan_lines(plan: MemoryPlan, document_tokens: int, prefix_tokens: int) -> list[str]:
    from scorer.plan import format_bytes

    memory, weights = format_bytes(plan.memory_bytes), format_bytes(plan.weight_bytes)
    pool = format_bytes(plan.num_blocks * plan.block_bytes)
    lines = [
        f"memory         {memory} = weights {weights} + KV {pool} + rest; activations and the process come on top",
        f"KV that fits   {plan.num_blocks:,} blocks = {plan.num_tokens:,} tokens",
        f"documents      {plan.num_documents:,} of {document_tokens:,} tokens ({plan.document_blocks:,} blocks each)",
    ]
    if prefix_tokens:
        lines.append(f"               beside one prefix of {prefix_tokens:,} tokens ({plan.prefix_blocks:,} blocks)")
    return lines
