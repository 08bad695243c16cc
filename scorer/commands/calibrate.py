"""``scorer calibrate``: fit a calibration of this model and template on examples whose answers are known."""

from __future__ import annotations

import os
import re
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
    from scorer.calibration.calibration import Calibration
    from scorer.evaluation.label_run import AnswerForm
    from scorer.model_host import LoadedModel


def _name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    del context, parameter
    if not re.fullmatch("[a-z0-9-]+", value):
        raise click.BadParameter(f"{value!r} is not made of small letters, digits and hyphens")
    return value


@click.command("calibrate")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File of the calibration."
)
@click.option(
    "--name", callback=_name, default="calibration", show_default=True, help="Small letters, digits and hyphens."
)
@click.option("--version", type=click.IntRange(min=1), default=1, show_default=True)
@model_option
@template_option
@max_document_tokens_option()
@queries_option
@answers_option
def command(
    *,
    source: Path,
    output: Path,
    name: str,
    version: int,
    model: str | None,
    template: str | None,
    max_document_tokens: int | None,
    num_queries: int | None,
    form: AnswerForm,
) -> None:
    """Fit a calibration on SOURCE and write it to a file that SCORER_CALIBRATION can name.

    SOURCE is a label set (a temperature for its answers is fitted), a ranking set, or a file of lines
    {"query": ..., "document": ..., "relevant": true} (Platt's sigmoid from scores to probabilities).
    What is printed was measured on halves that had no part in their fit.
    """
    import msgspec

    from engine import EngineError
    from scorer.calibration.calibration import CalibrationError, write_calibration
    from scorer.errors import Refusal
    from scorer.evaluation.set_lines import EvalSetError
    from scorer.offline.model import NoModel, offline_model

    try:
        with offline_model(os.environ, model=model, template=template) as loaded:
            calibration = msgspec.structs.replace(
                _fit(source, loaded, form, max_document_tokens, num_queries), name=name, version=version
            )
        write_calibration(output, calibration)
    except (EvalSetError, NoModel, EngineError, Refusal, CalibrationError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(_describe(calibration, output))


def _fit(
    source: Path, model: LoadedModel, form: AnswerForm, max_document_tokens: int | None, num_queries: int | None
) -> Calibration:
    from scorer.calibration.calibration import Calibration
    from scorer.calibration.examples import answers_of, pairs_of
    from scorer.calibration.fit import PLATT, TEMPERATURE, fit_platt, fit_temperature
    from scorer.evaluation.label_sets import is_label_set

    name, revision = model.name, model.engine.info.revision
    limits = {"max_document_tokens": max_document_tokens, "num_queries": num_queries}
    if is_label_set(source):
        template, answers = answers_of(source, model, form, **limits)
        return Calibration(
            name="calibration",
            version=1,
            method="temperature",
            model=name,
            revision=revision,
            template=template,
            temperature=fit_temperature(answers),
            fit=TEMPERATURE.cross_fit(answers),
        )
    template, pairs = pairs_of(source, model, **limits)
    return Calibration(
        name="calibration",
        version=1,
        method="platt",
        model=name,
        revision=revision,
        template=template,
        platt=fit_platt(pairs),
        fit=PLATT.cross_fit(pairs),
    )


def _describe(calibration: Calibration, output: Path) -> str:
    fit = calibration.fit
    assert fit is not None, "what was just fitted says how"
    value = (
        f"temperature {calibration.temperature:.4f}"
        if calibration.platt is None
        else f"sigmoid({calibration.platt.slope:.4f} x {calibration.platt.intercept:+.4f})"
    )
    return (
        f"{output}: {calibration.id} for {calibration.template} on {calibration.model}, {value}\n"
        f"  {fit.num_examples} examples; held out: log loss {fit.log_loss_before:.4f} -> {fit.log_loss_after:.4f}, "
        f"calibration error {fit.ece_before:.4f} -> {fit.ece_after:.4f}"
    )
