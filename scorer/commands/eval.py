"""``scorer eval``: how well the model ranks, beside BM25, or how well it answers."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scorer.commands.options import (
    answers_option,
    max_document_tokens_option,
    model_option,
    queries_option,
    template_option,
)

if TYPE_CHECKING:
    from scorer.evaluation.label_report import LabelReport
    from scorer.evaluation.label_run import AnswerForm, Debiased
    from scorer.evaluation.ranking_report import EvalReport


_RANKING_TOKENS = 300
_EXTRA = ("bm25s", "ir_measures", "Stemmer")


def _weights(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    del context, parameter
    try:
        weights = tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of numbers parted by commas") from error
    for weight in weights:
        if not 0 <= weight <= 1:
            raise click.BadParameter(f"{weight:g} is not between 0 and 1")
    return weights


@click.command("eval")
@click.argument("set_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@model_option
@template_option
@max_document_tokens_option(f"{_RANKING_TOKENS} for ranking sets, what fits for label sets")
@click.option("--depth", type=click.IntRange(min=1), default=50, show_default=True, help="Candidates per query.")
@click.option(
    "--weights",
    callback=_weights,
    default="",
    metavar="W,...",
    help="Shares of the model's score in mixes with BM25 to report on all queries, such as 0.5,0.7.",
)
@queries_option
@answers_option
@click.option(
    "--debias",
    type=click.Choice(["reverse", "rotate"]),
    default="reverse",
    show_default=True,
    help="Label sets: the orders of the options that are compared and averaged.",
)
@click.option("--question", metavar="TEXT", help="Label sets without questions: what is asked of each text.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report here."
)
def command(
    *,
    set_dir: Path,
    model: str | None,
    template: str | None,
    max_document_tokens: int | None,
    depth: int,
    weights: tuple[float, ...],
    num_queries: int | None,
    form: AnswerForm,
    debias: Debiased,
    question: str | None,
    json_file: Path | None,
) -> None:
    """Measure how well the model does on a set whose answers are known.

    A ranking set (docs.jsonl, queries.jsonl, qrels.tsv, bm25_top50.jsonl): its candidates are ranked
    again; nDCG@10 and MRR@10 are printed beside BM25's. A label set (items.jsonl): its questions are
    answered; accuracy, calibration error and how many answers hang on the order of the options are
    printed. docs/ranking-sets.md and docs/label-sets.md describe the files and the measures.
    """
    from engine import EngineError
    from scorer.errors import Refusal
    from scorer.evaluation.label_report import format_label_report
    from scorer.evaluation.label_sets import is_label_set, read_label_set
    from scorer.evaluation.labels import evaluate_labels
    from scorer.evaluation.ranking_report import format_report
    from scorer.evaluation.ranking_sets import read_ranking_set
    from scorer.evaluation.set_lines import EvalSetError
    from scorer.offline.model import NoModel, offline_model

    report: LabelReport | EvalReport
    try:
        if is_label_set(set_dir):
            label_set = read_label_set(set_dir).first(num_queries)
            with offline_model(os.environ, model=model, template=template) as loaded:
                report = evaluate_labels(
                    label_set,
                    loaded,
                    form=form,
                    debias=debias,
                    question=question,
                    max_document_tokens=max_document_tokens,
                )
            shown = format_label_report(report)
        else:
            _require_extra()
            from scorer.evaluation.ranking import evaluate_ranking

            ranking_set = read_ranking_set(set_dir)
            with offline_model(os.environ, model=model, template=template) as loaded:
                report = evaluate_ranking(
                    ranking_set,
                    loaded,
                    max_document_tokens=max_document_tokens or _RANKING_TOKENS,
                    depth=depth,
                    weights=weights,
                    num_queries=num_queries,
                )
            shown = format_report(report)
    except (EvalSetError, NoModel, EngineError, Refusal) as error:
        raise click.ClickException(str(error)) from error
    click.echo(shown)
    _write(report, json_file)


def _require_extra() -> None:
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise click.ClickException(f"{', '.join(missing)} is not installed; pip install 'radix-scorer[eval]' brings it")


def _write(report: LabelReport | EvalReport, json_file: Path | None) -> None:
    import msgspec

    if json_file is None:
        return
    try:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise click.ClickException(f"{json_file} cannot be written: {error.strerror}") from error
