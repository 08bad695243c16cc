"""System One as SGLang answers it: confidence above uniform, wrong values as a list of details."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import WireError, detail_error, sglang_error
from scorer.dialects.questions import Answer, Question, answer_of, questions_request, refuse_thinking
from scorer.dialects.schema import ScoreRequest
from scorer.dialects.score_parts import all_scores
from scorer.dialects.systemone import MAX_QUESTIONS, SystemOneQuestion, SystemOneUsage, question_of
from scorer.errors import Failure, InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.scores import rounded


class SglangSystemOneRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A state and questions about it. Unknown fields are refused."""

    state: Annotated[Any, Meta(description="A text, or anything else, which is read as JSON.")]
    questions: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=512)], SystemOneQuestion],
        Meta(min_length=1, max_length=MAX_QUESTIONS, description="By a name of the caller's."),
    ]
    model: Annotated[str, Meta(description="Any name: there is one model. The reply names it.")]
    images: Annotated[list[Any] | None, Meta(description="Must be empty: the model reads text.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="Has no effect.")] = None


class SglangChoiceAnswer(Struct, frozen=True, tag_field="type", tag="choice"):
    """`confidence`: 0 where all options are equally likely, 1 where one is certain."""

    choice: str
    confidence: float
    probabilities: dict[str, float]
    x_label_mass: float


class SglangNoulAnswer(Struct, frozen=True, tag_field="type", tag="noul"):
    """`noul` is the probability of yes."""

    noul: float
    x_label_mass: float


class SglangScoreAnswer(Struct, frozen=True, tag_field="type", tag="score"):
    """`score` is the mean level, counted from 0. `confidence`: 0 where levels are spread as if by chance."""

    score: float
    confidence: float
    legend: dict[str, str]
    probabilities: dict[str, float]
    x_label_mass: float


SglangSystemOneAnswer: TypeAlias = SglangChoiceAnswer | SglangNoulAnswer | SglangScoreAnswer


class SglangSystemOneResponse(Struct, frozen=True):
    """Answers by the names of the questions."""

    model: str
    answers: dict[str, SglangSystemOneAnswer]
    usage: SystemOneUsage


def sglang_systemone_dialect() -> Dialect[SglangSystemOneRequest]:
    return Dialect(
        decode=StrictDecoder(SglangSystemOneRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=sglang_systemone_error,
        partial=False,
    )


def sglang_systemone_error(failure: Failure) -> WireError:
    """SGLang's flat form, but what is wrong with a body comes as a list of details."""
    return detail_error(failure) if failure.status in {400, 422} else sglang_error(failure)


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How far the greatest share is above an equal one: (n·p − 1) / (n − 1)."""
    count = len(probabilities)
    return rounded(max(0.0, (count * max(probabilities) - 1) / (count - 1)))


def score_confidence(probabilities: Sequence[float]) -> float:
    """How much closer to the most probable level the levels lie than equally likely ones to the middle."""
    count = len(probabilities)
    top = probabilities.index(max(probabilities))
    spread = math.fsum(share * abs(level - top) for level, share in enumerate(probabilities))
    uniform = math.fsum(abs(level - (count - 1) / 2) for level in range(count)) / count
    return rounded(max(0.0, 1 - spread / uniform))


def _to_request(spoken: SglangSystemOneRequest) -> ScoreRequest:
    if spoken.images:
        raise InvalidValue("the model that is served reads text only", field="images")
    refuse_thinking(spoken.chat_template_kwargs)
    return questions_request(
        spoken.state if isinstance(spoken.state, str) else json.dumps(spoken.state, ensure_ascii=False),
        _questions(spoken),
        model=None,
        system="",
    )


def _questions(spoken: SglangSystemOneRequest) -> list[Question]:
    return [
        question_of(asked, f"questions.{name}.criteria", capitals=False) for name, asked in spoken.questions.items()
    ]


def _reply(spoken: SglangSystemOneRequest, batch: ScoredBatch) -> SglangSystemOneResponse:
    scores = all_scores(batch, queries="questions", documents="state", one_document=True)
    answers = [answer_of(question, score) for question, score in zip(_questions(spoken), scores, strict=True)]
    return SglangSystemOneResponse(
        model=batch.model,
        answers={
            name: _answer(asked, answer)
            for (name, asked), answer in zip(spoken.questions.items(), answers, strict=True)
        },
        usage=SystemOneUsage(input_tokens=batch.usage.prompt_tokens, output_tokens=0),
    )


def _answer(asked: SystemOneQuestion, answer: Answer) -> SglangSystemOneAnswer:
    shares = answer.probabilities
    match asked.type:
        case "noul":
            return SglangNoulAnswer(noul=shares[0], x_label_mass=answer.label_mass)
        case "choice":
            names = list(asked.criteria)
            return SglangChoiceAnswer(
                choice=names[answer.best],
                confidence=choice_confidence(shares),
                probabilities=dict(zip(names, shares, strict=True)),
                x_label_mass=answer.label_mass,
            )
        case "score":
            return SglangScoreAnswer(
                score=answer.expected,
                confidence=score_confidence(shares),
                legend={str(index): level for index, level in enumerate(asked.criteria)},
                probabilities={str(index): share for index, share in enumerate(shares)},
                x_label_mass=answer.label_mass,
            )
