"""System One's structured decisions: questions about a state, by name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import vllm_error
from scorer.dialects.questions import (
    MAX_LEVELS,
    MAX_OPTIONS,
    Answer,
    Entry,
    Question,
    answer_of,
    check_entries,
    choice_question,
    questions_request,
    refuse_thinking,
    score_question,
    yes_no_question,
)
from scorer.dialects.schema import ScoreRequest
from scorer.dialects.score_parts import GivenId, Salt, all_scores, refuse_priority
from scorer.dialects.vllm_options import own_request_id
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch

MAX_QUESTIONS: Final = 64
_MEDIA: Final = ("images", "audio", "videos")


class SystemOneQuestion(Struct, forbid_unknown_fields=True, frozen=True):
    """What is asked, and what may be answered."""

    type: Literal["choice", "noul", "score"]
    instructions: Annotated[str | None, Meta(description="The question itself.")] = None
    criteria: Annotated[
        Any,
        Meta(
            description="`choice`: the options, each with a description or null. `noul`: null, or what `true` and "
            "`false` mean. `score`: the levels in order."
        ),
    ] = None


Questions: TypeAlias = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=512)], SystemOneQuestion],
    Meta(min_length=1, max_length=MAX_QUESTIONS),
]


class SystemOneRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A state and questions about it. Unknown fields are refused."""

    state: Annotated[Any, Meta(description="A text, or anything else, which is read as JSON.")]
    questions: Annotated[Questions, Meta(description="By a name of the caller's.")]
    model: Annotated[str | None, Meta(description="Must be the served model if it is given.")] = None
    instructions: Annotated[str | None, Meta(description="Stands before the state, as the system text.")] = None
    images: Annotated[list[str] | None, Meta(description="Must be empty: the model reads text.")] = None
    audio: list[str] | None = None
    videos: list[str] | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="Has no effect.")] = None
    joint: Annotated[bool, Meta(description="Must be false: every question is answered by itself.")] = False
    cache_salt: Annotated[Salt | None, Meta(description="Only requests with the same salt meet in the cache.")] = None
    priority: Annotated[int, Meta(description="Must be 0: requests are served in order of arrival.")] = 0
    request_id: Annotated[GivenId | None, Meta(description="Comes back in `id`.")] = None


class SystemOneChoiceAnswer(Struct, frozen=True, tag_field="type", tag="choice"):
    """`confidence`: probability of the choice times `x_label_mass`."""

    choice: str
    probabilities: dict[str, float]
    confidence: float
    x_label_mass: float


class SystemOneNoulAnswer(Struct, frozen=True, tag_field="type", tag="noul"):
    """`noul` is the probability of yes."""

    noul: float
    probabilities: dict[str, float]
    confidence: float
    x_label_mass: float


class SystemOneScoreAnswer(Struct, frozen=True, tag_field="type", tag="score"):
    """`score` is the mean level, counted from 0; `legend` names the levels."""

    score: float
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float
    x_label_mass: float


SystemOneAnswer: TypeAlias = SystemOneChoiceAnswer | SystemOneNoulAnswer | SystemOneScoreAnswer


class SystemOneUsage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class SystemOneDiagnostics(Struct, frozen=True):
    """How far the labels were what the model wanted to say."""

    label_mass: Annotated[float, Meta(description="Probability of any label among everything possible.")]
    argmax_is_label: Annotated[
        bool | None, Meta(description="Whether the most probable token is a label; null where that cannot be told.")
    ]


class SystemOneResponse(Struct, frozen=True):
    """Answers by the names of the questions."""

    id: str
    object: Literal["structured_decision"]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
    diagnostics: dict[str, SystemOneDiagnostics]
    joint: bool


def systemone_dialect() -> Dialect[SystemOneRequest]:
    return Dialect(
        decode=StrictDecoder(SystemOneRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=vllm_error,
        partial=False,
        salt=lambda spoken: spoken.cache_salt,
    )


def _to_request(spoken: SystemOneRequest) -> ScoreRequest:
    refuse_priority(spoken.priority)
    for name in _MEDIA:
        if getattr(spoken, name):
            raise InvalidValue("the model that is served reads text only", field=name)
    if spoken.joint:
        raise InvalidValue("every question is answered by itself; leave joint out", field="joint")
    refuse_thinking(spoken.chat_template_kwargs)
    return questions_request(
        spoken.state if isinstance(spoken.state, str) else json.dumps(spoken.state, ensure_ascii=False),
        _questions(spoken),
        model=spoken.model,
        system=spoken.instructions or "",
        request_id=own_request_id(spoken.request_id),
    )


def _questions(spoken: SystemOneRequest) -> list[Question]:
    return [question_of(asked, f"questions.{name}.criteria") for name, asked in spoken.questions.items()]


def question_of(asked: SystemOneQuestion, field: str, *, capitals: bool = True) -> Question:
    """The question as the model reads it.

    Args:
        field: Of the criteria, for errors.
        capitals: ``Yes`` and ``No`` count as well.

    Raises:
        InvalidValue: the criteria are not those of its type.
    """
    match asked.type:
        case "choice":
            return _choice(asked, field)
        case "noul":
            return _noul(asked, field, capitals=capitals)
        case "score":
            return _score(asked, field)


def _reply(spoken: SystemOneRequest, batch: ScoredBatch) -> SystemOneResponse:
    scores = all_scores(batch, queries="questions", documents="state", one_document=True)
    answers = [answer_of(question, score) for question, score in zip(_questions(spoken), scores, strict=True)]
    named = list(zip(spoken.questions.items(), answers, strict=True))
    return SystemOneResponse(
        id=f"decision-{spoken.request_id or batch.request_id}",
        object="structured_decision",
        created=int(time.time()),
        model=batch.model,
        answers={name: _ANSWERS[asked.type](asked, answer) for (name, asked), answer in named},
        usage=SystemOneUsage(input_tokens=batch.usage.prompt_tokens, output_tokens=0),
        diagnostics={name: _diagnostics(answer) for (name, _), answer in named},
        joint=False,
    )


def _diagnostics(answer: Answer) -> SystemOneDiagnostics:
    # no other token can have more than what the labels leave
    certain = answer.confidence >= 1.0 - answer.label_mass
    return SystemOneDiagnostics(label_mass=answer.label_mass, argmax_is_label=True if certain else None)


def _choice(asked: SystemOneQuestion, field: str) -> Question:
    if not isinstance(asked.criteria, dict):
        raise InvalidValue("a choice has an object of options, each with a description or null", field=field)
    check_entries(list(asked.criteria), field, limit=MAX_OPTIONS)
    options = [
        Entry(name, _description(value, f"{field}[{index}]"))
        for index, (name, value) in enumerate(asked.criteria.items())
    ]
    return choice_question(asked.instructions or "", options)


def _noul(asked: SystemOneQuestion, field: str, *, capitals: bool) -> Question:
    meanings = {} if asked.criteria is None else asked.criteria
    if not isinstance(meanings, dict) or not meanings.keys() <= {"true", "false"}:
        raise InvalidValue("noul has null or an object with true and false", field=field)
    yes, no = (_description(meanings.get(name), f"{field}.{name}") for name in ("true", "false"))
    return yes_no_question(asked.instructions or "", yes=yes, no=no, capitals=capitals)


def _score(asked: SystemOneQuestion, field: str) -> Question:
    levels = asked.criteria
    if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
        raise InvalidValue("a score has a list of levels, from the first to the last", field=field)
    check_entries(levels, field, limit=MAX_LEVELS)
    return score_question(asked.instructions or "", [Entry(level) for level in levels])


def _description(value: object, field: str) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidValue("a description is a text or null", field=field)
    return value


def _choice_answer(asked: SystemOneQuestion, answer: Answer) -> SystemOneChoiceAnswer:
    names = list(asked.criteria)
    return SystemOneChoiceAnswer(
        choice=names[answer.best],
        probabilities=dict(zip(names, answer.probabilities, strict=True)),
        confidence=answer.confidence,
        x_label_mass=answer.label_mass,
    )


def _noul_answer(_asked: SystemOneQuestion, answer: Answer) -> SystemOneNoulAnswer:
    yes, no = answer.probabilities
    return SystemOneNoulAnswer(
        noul=yes, probabilities={"yes": yes, "no": no}, confidence=answer.confidence, x_label_mass=answer.label_mass
    )


def _score_answer(asked: SystemOneQuestion, answer: Answer) -> SystemOneScoreAnswer:
    return SystemOneScoreAnswer(
        score=answer.expected,
        legend={str(index): level for index, level in enumerate(asked.criteria)},
        probabilities={str(index): share for index, share in enumerate(answer.probabilities)},
        confidence=answer.confidence,
        x_label_mass=answer.label_mass,
    )


_ANSWERS: Final[dict[str, Callable[[SystemOneQuestion, Answer], SystemOneAnswer]]] = {
    "choice": _choice_answer,
    "noul": _noul_answer,
    "score": _score_answer,
}
