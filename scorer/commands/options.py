"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import click

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

model_option: Decorator = click.option(
    "--model", metavar="PATH", help="Folder, .gguf file, or name of the model.  [default: the fetched one]"
)
template_option: Decorator = click.option(
    "--template", metavar="NAME", help="name, name@version, or a .toml file.  [default: suits the model]"
)
queries_option: Decorator = click.option(
    "--queries", "num_queries", type=click.IntRange(min=1), help="Take only the first N queries (documents) of a set."
)
answers_option: Decorator = click.option(
    "--answers",
    "form",
    type=click.Choice(["letters", "words"]),
    default="letters",
    show_default=True,
    help="Label sets: the model answers with the letter of an option, or with the option.",
)


def max_document_tokens_option(default: str = "what fits") -> Decorator:
    """Where documents are cut; ``default`` is what is said of the command's own choice."""
    return click.option(
        "--max-document-tokens", type=click.IntRange(min=1), help=f"Cut longer documents.  [default: {default}]"
    )
