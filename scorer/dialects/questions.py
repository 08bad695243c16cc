"""Questions about one text, each read as the probabilities of a few labels.

The text stands first in every prompt, so it is computed once however many questions there are.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scorer.dialects.schema import CacheSpec, QueryItem, ReadoutSpec, ScoreRequest
from scorer.errors import InvalidValue
from scorer.scoring.scores import ItemScore, rounded

TEMPLATE: Final = "decision@1"
MAX_OPTIONS: Final = 255
MAX_LEVELS: Final = 10

_YES_NO: Final = (("yes", "Yes"), ("no", "No"))
_PLAIN_YES_NO: Final = (("yes",), ("no",))
_LETTERS: Final = string.ascii_uppercase


@dataclass(frozen=True, slots=True)
class Entry:
    """An option or a level as the model reads it."""

    name: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answers.

    Args:
        text: As the model reads it, behind the text that it is about.
        spellings: Labels of each answer; any of them counts for it.
    """

    text: str
    spellings: tuple[tuple[str, ...], ...]

    @property
    def labels(self) -> list[str]:
        return [label for labels in self.spellings for label in labels]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question came to.

    Args:
        probabilities: Of each answer among all of them.
        label_mass: Probability that the model says any of the labels at all.
    """

    probabilities: list[float]
    label_mass: float

    @property
    def best(self) -> int:
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """Probability of the best answer among everything that the model could say."""
        return rounded(self.probabilities[self.best] * self.label_mass)

    @property
    def expected(self) -> float:
        """Mean index of the answer."""
        return rounded(sum(index * share for index, share in enumerate(self.probabilities)))


def yes_no_question(
    instructions: str, *, yes: str | None = None, no: str | None = None, capitals: bool = True
) -> Question:
    """A question, or a statement that may be true.

    Args:
        yes, no: What the answers mean.
        capitals: ``Yes`` and ``No`` count as well.
    """
    meanings = [f"{name}: {meaning}" for name, meaning in (("yes", yes), ("no", no)) if meaning]
    return Question(
        _worded(instructions, meanings, "Reply with yes or no only."), _YES_NO if capitals else _PLAIN_YES_NO
    )


def choice_question(instructions: str, options: Sequence[Entry]) -> Question:
    """A question that one of the options answers; they are called by letters, by two each beyond 26."""
    labels = _letters(len(options))
    lines = [f"{label}. {_entry(option)}" for label, option in zip(labels, options, strict=True)]
    reply = (
        "Reply with the letter of one option only."
        if len(options) <= len(_LETTERS)
        else ("Reply with the two letters of one option only.")
    )
    return Question(_worded(instructions, lines, reply), tuple((label,) for label in labels))


def score_question(instructions: str, levels: Sequence[Entry]) -> Question:
    """A question that one of the levels answers, from the first, 0, to the last."""
    lines = [f"{number}. {_entry(level)}" for number, level in enumerate(levels)]
    reply = "Reply with the number of one level only."
    return Question(_worded(instructions, lines, reply), tuple((str(number),) for number in range(len(levels))))


def questions_request(
    text: str,
    questions: Iterable[Question],
    *,
    model: str | None,
    system: str,
    temperature: float = 1.0,
    keep_cached: bool = True,
    request_id: str | None = None,
) -> ScoreRequest:
    """All questions about ``text`` in native terms; a text that does not fit is an error."""
    return ScoreRequest(
        queries=[QueryItem(text=question.text, readout=_readout(question, temperature)) for question in questions],
        documents=[text],
        model=model,
        template=TEMPLATE,
        system=system,
        truncate="error",
        cache=CacheSpec(keep="auto" if keep_cached else "none"),
        request_id=request_id,
    )


def answer_of(question: Question, score: ItemScore) -> Answer:
    """The answer that was read."""
    assert score.labels is not None, "a question is read by its labels"
    assert score.label_mass is not None, "it asks for their mass"
    shares = score.labels
    sums = [sum(shares[label] for label in labels) for labels in question.spellings]
    return Answer([rounded(share) for share in sums], score.label_mass)


def check_entries(entries: Sequence[object], field: str, *, limit: int) -> None:
    """Check the options or levels of a question.

    Raises:
        InvalidValue: there are fewer than two or too many, or two are alike.
    """
    if not 2 <= len(entries) <= limit:
        bound = 2 if len(entries) < 2 else limit
        raise InvalidValue(
            f"{len(entries)} answers are given, 2 to {limit} are possible", field=field, value=len(entries), limit=bound
        )
    for index, entry in enumerate(entries):
        if any(entry == other and type(entry) is type(other) for other in entries[:index]):
            raise InvalidValue("two answers are alike", field=f"{field}[{index}]")


def refuse_thinking(chat_template_kwargs: Mapping[str, Any] | None) -> None:
    """The label is the first token of the reply.

    Raises:
        InvalidValue: the model is to think before it.
    """
    if (chat_template_kwargs or {}).get("enable_thinking"):
        raise InvalidValue("the label is the first token of the reply", field="chat_template_kwargs.enable_thinking")


def _readout(question: Question, temperature: float) -> ReadoutSpec:
    return ReadoutSpec(kind="labels", labels=question.labels, label_mass=True, temperature=temperature)


def _worded(instructions: str, lines: Sequence[str], reply: str) -> str:
    return "\n\n".join(part for part in (instructions, "\n".join(lines), reply) if part)


def _entry(entry: Entry) -> str:
    return f"{entry.name}: {entry.description}" if entry.description else entry.name


def _letters(count: int) -> list[str]:
    if count <= len(_LETTERS):
        return list(_LETTERS[:count])
    return ["".join(pair) for pair in itertools.islice(itertools.product(_LETTERS, repeat=2), count)]
