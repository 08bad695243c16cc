"""Scores of examples whose answers are known, without any calibration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from scorer.calibration.calibration import CalibrationError
from scorer.calibration.fit import ScoredPair
from scorer.dialects.schema import ScoreRequest
from scorer.evaluation.label_eval import Answer
from scorer.evaluation.label_run import DEFAULT_QUESTION, AnswerForm, answer_questions
from scorer.evaluation.label_sets import read_label_set
from scorer.evaluation.ranking_sets import read_ranking_set
from scorer.evaluation.set_lines import json_lines
from scorer.model_host import LoadedModel
from scorer.offline.scoring import score_now
from scorer.scoring.batch import ScoredBatch

_BATCH = 128


class _PairLine(msgspec.Struct, frozen=True):
    query: str
    document: str
    relevant: bool


def answers_of(
    folder: Path, model: LoadedModel, form: AnswerForm, *, max_document_tokens: int | None, num_queries: int | None
) -> tuple[str, list[Answer]]:
    """The answers to a label set, and the template that they were asked with.

    Raises:
        EvalSetError: the set cannot be read.
        CalibrationError: no question was answered.
    """
    label_set = read_label_set(folder).first(num_queries)
    templates: list[str] = []
    answers = answer_questions(
        label_set.documents,
        lambda request: score_now(request, model),
        form=form,
        debias="none",
        question=DEFAULT_QUESTION,
        max_document_tokens=max_document_tokens,
        calibration="none",
        on_batch=lambda batch: templates.append(batch.plan.template),
    )
    if not answers:
        raise CalibrationError(f"{folder}: no question has an answer")
    return templates[0], answers


def pairs_of(
    source: Path, model: LoadedModel, *, max_document_tokens: int | None, num_queries: int | None
) -> tuple[str, list[ScoredPair]]:
    """The scores of pairs, and the template that they were scored with.

    Args:
        source: A folder with a ranking set, or a file of pairs.

    Raises:
        EvalSetError: it cannot be read.
        CalibrationError: no pair has a score.
    """
    asked = _ranking_requests(source) if source.is_dir() else _file_requests(source)
    pairs: list[ScoredPair] = []
    template = ""
    for request, relevant in islice(asked, num_queries):
        batch = score_now(msgspec.structs.replace(request, max_tokens_per_doc=max_document_tokens), model)
        template = batch.plan.template
        pairs += _scored(batch, relevant)
    if not pairs:
        raise CalibrationError(f"{source}: no pair has a score")
    return template, pairs


def _scored(batch: ScoredBatch, relevant: list[bool]) -> Iterator[ScoredPair]:
    for item, truth in zip(batch.items, relevant, strict=True):
        if item.score is not None:
            yield ScoredPair(item.score.score, item.score.relevance, truth)


def _ranking_requests(folder: Path) -> Iterator[tuple[ScoreRequest, list[bool]]]:
    """One request for each query; a candidate that nobody judged counts as not relevant."""
    ranking_set = read_ranking_set(folder)
    for query in ranking_set.queries:
        documents = [ranking_set.documents[candidate] for candidate in query.candidates]
        relevant = [query.grades.get(candidate, 0) > 0 for candidate in query.candidates]
        yield ScoreRequest(queries=[query.text], documents=[*documents], calibration="none"), relevant


def _file_requests(path: Path) -> Iterator[tuple[ScoreRequest, list[bool]]]:
    lines = (line for _, line in json_lines(path, _PairLine))
    while batch := list(islice(lines, _BATCH)):
        request = ScoreRequest(
            queries=[line.query for line in batch],
            documents=[line.document for line in batch],
            pairs=[(index, index) for index in range(len(batch))],
            calibration="none",
        )
        yield request, [line.relevant for line in batch]
