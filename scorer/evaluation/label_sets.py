"""Label sets: texts, or questions about documents, with options of which one is right.

The form is described in ``docs/label-sets.md``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from scorer.dialects.schema import MAX_OPTIONS
from scorer.evaluation.set_lines import EvalSetError, json_lines

ITEMS = "items.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelQuestion:
    """A question with its options.

    Args:
        text: Empty where the set says nothing but which label a text has.
        label: Index of the right option.
    """

    id: str
    text: str
    options: tuple[str, ...]
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledDocument:
    text: str
    questions: tuple[LabelQuestion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """Documents with questions, in the order of the file; ids of questions are distinct."""

    name: str
    documents: tuple[LabelledDocument, ...]

    def first(self, num_documents: int | None) -> LabelSet:
        """The set with its first documents only; None: all."""
        return replace(self, documents=self.documents[:num_documents])

    @property
    def questions(self) -> list[LabelQuestion]:
        return [question for document in self.documents for question in document.questions]

    @property
    def constant_accuracy(self) -> float:
        """How often the commonest right answer is right: what an answer without looking gets.

        Answers are compared by their text where all questions have the same options, otherwise by
        their place.
        """
        questions = self.questions
        same = len({frozenset(question.options) for question in questions}) == 1
        right = Counter(question.options[question.label] if same else question.label for question in questions)
        return max(right.values()) / len(questions)


class _Question(msgspec.Struct, frozen=True):
    id: str
    text: str
    options: list[str]
    label: int


class _Line(msgspec.Struct, frozen=True):
    """Either a document with questions, or a text with a label."""

    document: str | None = None
    questions: list[_Question] | None = None
    id: str | None = None
    text: str | None = None
    options: list[str] | None = None
    label: int | None = None


def is_label_set(folder: Path) -> bool:
    return (folder / ITEMS).is_file()


def read_label_set(folder: Path) -> LabelSet:
    """The label set in ``folder``, named after it.

    Raises:
        EvalSetError: the file is missing or unreadable, a line is not in the form, an id occurs
            twice, or a label is not one of the options.
    """
    path = folder / ITEMS
    documents: list[LabelledDocument] = []
    seen: set[str] = set()
    for where, line in json_lines(path, _Line):
        document = _document(where, line)
        for question in document.questions:
            if question.id in seen:
                raise EvalSetError(f"{where}: the id {question.id!r} occurs a second time")
            seen.add(question.id)
            _check_question(where, question)
        documents.append(document)
    if not seen:
        raise EvalSetError(f"{path}: the file has no questions")
    return LabelSet(name=folder.resolve().name, documents=tuple(documents))


def _document(where: str, line: _Line) -> LabelledDocument:
    if line.document is not None and line.questions is not None:
        questions = tuple(
            LabelQuestion(id=each.id, text=each.text, options=tuple(each.options), label=each.label)
            for each in line.questions
        )
        return LabelledDocument(text=line.document, questions=questions)
    if line.id is None or line.text is None or line.options is None or line.label is None:
        raise EvalSetError(
            f"{where}: wanted document and questions with id, text, options and label; or id, text, options and label"
        )
    question = LabelQuestion(id=line.id, text="", options=tuple(line.options), label=line.label)
    return LabelledDocument(text=line.text, questions=(question,))


def _check_question(where: str, question: LabelQuestion) -> None:
    count = len(question.options)
    if not 2 <= count <= MAX_OPTIONS or len(set(question.options)) < count or "" in question.options:
        raise EvalSetError(f"{where}: {question.id!r} needs 2 to {MAX_OPTIONS} options, none empty, no two alike")
    if not 0 <= question.label < count:
        raise EvalSetError(f"{where}: the label of {question.id!r} is {question.label}; it has {count} options")
