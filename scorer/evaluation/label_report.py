"""What ``scorer eval`` found on a label set, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scorer.evaluation.label_eval import AnswerRow
from scorer.evaluation.label_run import AnswerForm
from scorer.evaluation.ranking_run import Tally
from scorer.evaluation.token_shares import format_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReport:
    """A measurement and everything needed to repeat it.

    Args:
        constant_accuracy: What the commonest answer gets.
        tally: Questions without a score are in no row.
        seconds: Scoring alone.
    """

    label_set: str
    model: str
    revision: str
    dtype: str
    kernels: str
    form: AnswerForm
    calibration: str | None
    num_documents: int
    num_questions: int
    max_document_tokens: int | None
    constant_accuracy: float
    rows: tuple[AnswerRow, ...]
    tally: Tally
    seconds: float


def format_label_report(report: LabelReport) -> str:
    """A table for a terminal."""
    return "\n".join(_lines(report))


def _lines(report: LabelReport) -> Iterator[str]:
    yield f"set       {report.label_set}: {report.num_questions} questions about {report.num_documents} documents"
    yield f"model     {report.model} (revision {report.revision}), {report.dtype}, {report.kernels} kernels"
    cut = "" if report.max_document_tokens is None else f", documents cut at {report.max_document_tokens} tokens"
    applied = "" if report.calibration is None else f", calibration {report.calibration}"
    yield f"answers   {report.form}{cut} (in {report.tally.num_cut} answers){applied}"
    yield ""
    yield f"  {'order of options':<20}{'accuracy':>9}  {'95 %':<16}{'log loss':>9}{'ECE':>8}{'flips':>8}"
    yield f"  {'commonest answer':<20}{report.constant_accuracy:>9.4f}"
    for row in report.rows:
        interval = f"[{row.low:.3f}, {row.high:.3f}]"
        flips = "" if row.flips is None else f"{row.flips:>8.4f}"
        yield f"  {row.name:<20}{row.accuracy:>9.4f}  {interval:<16}{row.log_loss:>9.4f}{row.ece:>8.4f}{flips}"
    yield ""
    usage = report.tally.usage
    yield f"  {usage.prompt_tokens:,} prompt tokens: {format_shares(usage)}"
    yield f"  {report.seconds:,.1f} s, {report.tally.num_pairs / report.seconds:.1f} answers/s"
    if report.tally.num_unscored:
        yield f"  {report.tally.num_unscored} answers have no score and are left out"
