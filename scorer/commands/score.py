"""``scorer score``: score a file without a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scorer.commands.options import max_document_tokens_option, model_option, template_option

if TYPE_CHECKING:
    from scorer.model_host import LoadedModel
    from scorer.offline.pair_lines import LineInfo
    from scorer.offline.score_file import Totals
    from scorer.scoring.prompts import PromptBuilder


@click.command("score")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of results; continued if it exists.  [default: FILE with .scores.jsonl in place of its ending]",
)
@model_option
@template_option
@max_document_tokens_option()
@click.option(
    "--batch-pairs",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Pairs scored together: more share more, and more are lost by an interruption.",
)
def command(
    *,
    file: Path,
    output: Path | None,
    model: str | None,
    template: str | None,
    max_document_tokens: int | None,
    batch_pairs: int,
) -> None:
    """Score every line of FILE; run again after an interruption, it goes on where it was.

    A line is a pair, {"query": ..., "document": ..., "id": ...} with the id left out or not, or
    a batch as POST /v1/batches/score takes it. Every line is checked before the first is scored.

    Results are in the order of the lines, one line each, after a first line that says what made
    them. Keep the pairs of one document (or of one query) together: what they share is
    computed once within --batch-pairs, and beyond that as long as the cache holds it.

    The exit code is 0 if every pair has a score, 1 if some have an error instead or the run
    could not go on, 130 if it was interrupted.
    """
    from engine import EngineError
    from scorer.offline.model import NoModel, offline_model
    from scorer.offline.pair_lines import InputError, scan_lines
    from scorer.offline.result_file import ResultFileError

    output = output or file.with_name(f"{file.stem}.scores.jsonl")
    try:
        lines = scan_lines(file)
        with offline_model(os.environ, model=model, template=template) as loaded:
            totals = _score(file, lines, output, loaded, batch_pairs, max_document_tokens)
    except (InputError, NoModel, ResultFileError) as error:
        raise click.ClickException(str(error)) from error
    except EngineError as error:
        raise click.ClickException(f"{error}; the results so far are in {output}, run again to go on") from error
    except KeyboardInterrupt:
        click.echo(f"interrupted; the results so far are in {output}, run again to go on", err=True)
        raise SystemExit(130) from None
    click.echo(_summary(totals, output), err=True)
    if totals.failed_pairs:
        raise SystemExit(1)


def _score(
    file: Path,
    lines: list[LineInfo],
    output: Path,
    model: LoadedModel,
    batch_pairs: int,
    max_document_tokens: int | None,
) -> Totals:
    from tqdm import tqdm

    from scorer.offline.result_file import FORMAT, Header, ResultFile
    from scorer.offline.score_file import score_lines
    from scorer.offline.scoring import score_now

    info = model.engine.info
    header = Header(
        format=FORMAT,
        model=model.name,
        revision=info.revision,
        template=model.prompts.default.template.id,
        template_sha256=_template_hash(model.prompts.default),
        dtype=info.dtype,
        max_document_tokens=max_document_tokens,
        calibration=model.calibration.id if model.calibration else None,
    )
    with (
        ResultFile(output, header) as results,
        tqdm(total=sum(line.num_pairs for line in lines), unit="pair", bar_format=_BAR) as bar,
    ):
        return score_lines(
            file,
            lines,
            results,
            lambda request: score_now(request, model),
            batch_pairs=batch_pairs,
            max_document_tokens=max_document_tokens,
            on_progress=lambda totals: _show(bar, totals),
        )


def _template_hash(prompts: PromptBuilder) -> str:
    """16 hex digits of what decides the prompt of a pair: the template's content and the chat format's."""
    import hashlib
    from dataclasses import replace

    import msgspec

    content = msgspec.json.encode((replace(prompts.template, source=""), prompts.chat), order="deterministic")
    return hashlib.sha256(content).hexdigest()[:16]


_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} pairs [{elapsed}{postfix}]"


def _show(bar: Any, totals: Totals) -> None:
    from scorer.evaluation.token_shares import format_shares

    if totals.done_pairs:
        rate = totals.done_pairs / totals.seconds
        bar.set_postfix_str(f"{rate:.1f} pairs/s, {format_shares(totals.usage)}", refresh=False)
    bar.update(totals.skipped_pairs + totals.done_pairs - bar.n)


def _summary(totals: Totals, output: Path) -> str:
    from scorer.evaluation.token_shares import format_shares

    parts = [f"{totals.done_pairs} pairs"]
    if totals.skipped_pairs:
        parts.append(f"{totals.skipped_pairs} were done before")
    if totals.failed_pairs:
        parts.append(f"{totals.failed_pairs} have an error instead of a score")
    if totals.usage.prompt_tokens:
        parts.append(f"{totals.seconds:.1f} s, {totals.done_pairs / totals.seconds:.1f} pairs/s")
        parts.append(f"{totals.usage.prompt_tokens} prompt tokens: {format_shares(totals.usage)}")
    return f"{output}: {'; '.join(parts)}"
