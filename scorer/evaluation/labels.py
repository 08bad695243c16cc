"""Measuring how well a model answers the questions of a label set."""

from __future__ import annotations

import time

from scorer.dialects.schema import ScoreRequest
from scorer.evaluation.label_eval import judge_answers
from scorer.evaluation.label_report import LabelReport
from scorer.evaluation.label_run import DEFAULT_QUESTION, AnswerForm, Debiased, answer_questions
from scorer.evaluation.label_sets import LabelSet
from scorer.evaluation.progress import counting
from scorer.model_host import LoadedModel
from scorer.offline.scoring import score_now
from scorer.scoring.batch import ScoredBatch


def evaluate_labels(
    label_set: LabelSet,
    model: LoadedModel,
    *,
    form: AnswerForm,
    debias: Debiased,
    question: str | None,
    max_document_tokens: int | None,
) -> LabelReport:
    """Answers with the options as listed and in the orders of ``debias``, judged.

    Args:
        question: Asked where the set has none; None: the usual one.
    """
    questions = label_set.questions
    rows = []
    names: dict[Debiased, str] = {"none": "as listed", debias: f"{debias}, averaged"}
    calibrations: set[str | None] = set()
    with counting(len(names) * len(questions), label_set.name, "answer") as (tally, count):

        def score(request: ScoreRequest) -> ScoredBatch:
            batch = score_now(request, model)
            calibrations.add(batch.plan.calibration)
            return batch

        started = time.monotonic()
        for orders, name in names.items():
            answers = answer_questions(
                label_set.documents,
                score,
                form=form,
                debias=orders,
                question=question or DEFAULT_QUESTION,
                max_document_tokens=max_document_tokens,
                on_batch=count,
            )
            if answers:
                rows.append(judge_answers(name, answers))
        seconds = time.monotonic() - started
    info = model.engine.info
    return LabelReport(
        label_set=label_set.name,
        model=model.name,
        revision=info.revision,
        dtype=info.dtype,
        kernels=info.kernels,
        form=form,
        calibration=next(iter(calibrations), None),
        num_documents=len(label_set.documents),
        num_questions=len(questions),
        max_document_tokens=max_document_tokens,
        constant_accuracy=label_set.constant_accuracy,
        rows=tuple(rows),
        tally=tally,
        seconds=seconds,
    )
