"""Answering the questions of label sets: one request per document, so that it is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from scorer.dialects.schema import QueryItem, ReadoutSpec, ScoreRequest
from scorer.evaluation.label_eval import Answer
from scorer.evaluation.label_sets import LabelledDocument, LabelQuestion
from scorer.scoring.batch import ItemFault, ScoredBatch, ScoredItem

AnswerForm: TypeAlias = Literal["letters", "words"]
"""What the model answers with: the letter of an option, or the option itself."""
Debiased: TypeAlias = Literal["none", "reverse", "rotate"]

DEFAULT_QUESTION = "Which label fits the document best?"
"""Asked of a text whose set has no questions."""


def answer_questions(
    documents: Sequence[LabelledDocument],
    score: Callable[[ScoreRequest], ScoredBatch],
    *,
    form: AnswerForm,
    debias: Debiased,
    question: str,
    max_document_tokens: int | None,
    calibration: Literal["auto", "none"] = "auto",
    on_batch: Callable[[ScoredBatch], None],
) -> list[Answer]:
    """The answers to all questions that have one, in order.

    Args:
        debias: Orders of the options that are averaged.
        question: Asked where the set has no question.
        on_batch: Told of every reply.
    """
    answers: list[Answer] = []
    for document in documents:
        request = ScoreRequest(
            queries=[_query(each, form, debias, question) for each in document.questions],
            documents=[document.text],
            max_tokens_per_doc=max_document_tokens,
            calibration=calibration,
        )
        batch = score(request)
        on_batch(batch)
        for each, item in zip(document.questions, batch.items, strict=True):
            if not isinstance(item.result, ItemFault):
                answers.append(_answer(each, item))
    return answers


def _query(question: LabelQuestion, form: AnswerForm, debias: Debiased, default: str) -> QueryItem:
    text = question.text or default
    if form == "letters":
        return QueryItem(text=text, options=list(question.options), readout=ReadoutSpec(debias=debias))
    return QueryItem(text=text, template="classify", readout=ReadoutSpec(labels=list(question.options), debias=debias))


def _answer(question: LabelQuestion, item: ScoredItem) -> Answer:
    score = item.score
    assert score is not None, "only answers that are there are read"
    probabilities = score.probabilities or list((score.labels or {}).values())
    return Answer(probabilities=probabilities, label=question.label, agreement=score.agreement)
