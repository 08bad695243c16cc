"""OpenAI's decisions: predicates, choices and scores about one input, answered in order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import openai_error
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
    score_question,
    yes_no_question,
)
from scorer.dialects.schema import ScoreRequest
from scorer.dialects.score_parts import Salt, all_scores
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import ScoredBatch

MAX_QUESTIONS: Final = 400
MAX_INPUT_CHARACTERS: Final = 10_485_760


class OpenAiCacheBreakpoint(Struct, forbid_unknown_fields=True, frozen=True):
    """Marks a prefix. Prefixes are found here without marks, at any token."""

    mode: Literal["explicit"]


class OpenAiInputText(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="input_text"):
    text: str
    prompt_cache_breakpoint: OpenAiCacheBreakpoint | None = None


class OpenAiInputJson(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="input_json"):
    """Read as compact JSON."""

    data: dict[str, Any] | list[dict[str, Any]]


Content: TypeAlias = str | Annotated[list[OpenAiInputText | OpenAiInputJson], Meta(min_length=1)]


class OpenAiInputMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """What is judged (`user`), or how (`system` and `developer`, which become the system text)."""

    role: Literal["user", "system", "developer"]
    content: Content
    type: Literal["message"] = "message"


class OpenAiPredicate(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="predicate"):
    """A statement about the input that may be true."""

    instructions: Content
    name: str | None = None


class OpenAiOption(Struct, forbid_unknown_fields=True, frozen=True):
    value: str | bool
    description: str | None = None


class OpenAiChoice(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="choice"):
    """One of the options."""

    instructions: Content
    choices: Annotated[list[OpenAiOption], Meta(min_length=2, max_length=MAX_OPTIONS)]
    name: str | None = None


class OpenAiLevel(Struct, forbid_unknown_fields=True, frozen=True):
    label: str
    description: str | None = None


class OpenAiScore(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="score"):
    """One of the levels, in order."""

    instructions: Content
    levels: Annotated[list[OpenAiLevel], Meta(min_length=2, max_length=MAX_LEVELS)]
    name: str | None = None


class OpenAiCacheOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """`explicit` without a mark anywhere keeps nothing in the cache."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Annotated[Literal["30m"], Meta(description="Has no effect: what is used least goes first.")] = "30m"


class DecisionsRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Questions about one input. Unknown fields are refused."""

    model: Annotated[str, Meta(description="Must be the served model.")]
    input: (
        Annotated[str, Meta(min_length=1, max_length=MAX_INPUT_CHARACTERS)]
        | Annotated[list[OpenAiInputMessage], Meta(min_length=1)]
    )
    questions: Annotated[
        list[OpenAiPredicate | OpenAiChoice | OpenAiScore], Meta(min_length=1, max_length=MAX_QUESTIONS)
    ]
    prompt_cache_key: Annotated[Salt | None, Meta(description="Only requests with the same key meet in the cache.")] = (
        None
    )
    prompt_cache_options: OpenAiCacheOptions | None = None
    safety_identifier: Annotated[str | None, Meta(description="Has no effect.")] = None
    joint: Annotated[bool, Meta(description="Must be false: every question is answered by itself.")] = False
    cache_salt: Annotated[Salt | None, Meta(description="Another name of `prompt_cache_key`.")] = None


class OpenAiPredicateAnswer(Struct, frozen=True, tag_field="type", tag="predicate"):
    name: str | None
    probability: float


class OpenAiChoiceProbability(Struct, frozen=True):
    value: str | bool
    probability: float


class OpenAiChoiceAnswer(Struct, frozen=True, tag_field="type", tag="choice"):
    """`confidence`: probability of the choice among everything that the model could have said."""

    name: str | None
    choice: str | bool
    probabilities: list[OpenAiChoiceProbability]
    confidence: float


class OpenAiLevelProbability(Struct, frozen=True):
    value: int
    label: str
    probability: float


class OpenAiScoreAnswer(Struct, frozen=True, tag_field="type", tag="score"):
    """`score` is the mean level, counted from 0."""

    name: str | None
    score: float
    probabilities: list[OpenAiLevelProbability]
    confidence: float


class OpenAiInputTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OpenAiOutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int


class OpenAiDecisionsUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: OpenAiInputTokensDetails
    output_tokens: int
    output_tokens_details: OpenAiOutputTokensDetails
    total_tokens: int


class DecisionsResponse(Struct, frozen=True):
    """Answers in the order of the questions."""

    model: str
    answers: list[OpenAiPredicateAnswer | OpenAiChoiceAnswer | OpenAiScoreAnswer]
    usage: OpenAiDecisionsUsage


def openai_decisions_dialect() -> Dialect[DecisionsRequest]:
    return Dialect(
        decode=StrictDecoder(DecisionsRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=openai_error,
        partial=False,
        salt=lambda spoken: spoken.prompt_cache_key or spoken.cache_salt,
    )


def _to_request(spoken: DecisionsRequest) -> ScoreRequest:
    if spoken.joint:
        raise InvalidValue("every question is answered by itself; leave joint out", field="joint")
    messages = [] if isinstance(spoken.input, str) else spoken.input
    judged = [message.content for message in messages if message.role == "user"]
    if not isinstance(spoken.input, str) and not judged:
        raise InvalidValue("no message is the user's, so there is nothing to judge", field="input")
    return questions_request(
        spoken.input if isinstance(spoken.input, str) else "\n\n".join(map(_text, judged)),
        _questions(spoken),
        model=spoken.model,
        system="\n\n".join(_text(message.content) for message in messages if message.role != "user"),
        keep_cached=_keeps_cached(spoken.prompt_cache_options, judged),
    )


def _keeps_cached(options: OpenAiCacheOptions | None, contents: Sequence[Content]) -> bool:
    if options is None or options.mode != "explicit":
        return True
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return any(isinstance(part, OpenAiInputText) and part.prompt_cache_breakpoint is not None for part in parts)


def _questions(spoken: DecisionsRequest) -> list[Question]:
    return [_question(asked, f"questions[{index}]") for index, asked in enumerate(spoken.questions)]


def _question(asked: OpenAiPredicate | OpenAiChoice | OpenAiScore, field: str) -> Question:
    instructions = _text(asked.instructions)
    match asked:
        case OpenAiPredicate():
            return yes_no_question(instructions)
        case OpenAiChoice():
            check_entries([option.value for option in asked.choices], f"{field}.choices", limit=MAX_OPTIONS)
            return choice_question(
                instructions, [Entry(_spelt(each.value), each.description) for each in asked.choices]
            )
        case OpenAiScore():
            check_entries([level.label for level in asked.levels], f"{field}.levels", limit=MAX_LEVELS)
            return score_question(instructions, [Entry(level.label, level.description) for level in asked.levels])


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(part.text if isinstance(part, OpenAiInputText) else _compact(part.data) for part in content)


def _compact(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _spelt(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _reply(spoken: DecisionsRequest, batch: ScoredBatch) -> DecisionsResponse:
    scores = all_scores(batch, queries="questions", documents="input", one_document=True)
    answers = [answer_of(question, score) for question, score in zip(_questions(spoken), scores, strict=True)]
    stats = batch.usage
    return DecisionsResponse(
        model=batch.model,
        answers=[_answer(asked, answer) for asked, answer in zip(spoken.questions, answers, strict=True)],
        usage=OpenAiDecisionsUsage(
            input_tokens=stats.prompt_tokens,
            input_tokens_details=OpenAiInputTokensDetails(
                cached_tokens=stats.cached_tokens, cache_write_tokens=stats.kept_tokens
            ),
            output_tokens=0,
            output_tokens_details=OpenAiOutputTokensDetails(reasoning_tokens=0),
            total_tokens=stats.prompt_tokens,
        ),
    )


def _answer(
    asked: OpenAiPredicate | OpenAiChoice | OpenAiScore, answer: Answer
) -> OpenAiPredicateAnswer | OpenAiChoiceAnswer | OpenAiScoreAnswer:
    shares = answer.probabilities
    match asked:
        case OpenAiPredicate():
            return OpenAiPredicateAnswer(name=asked.name, probability=shares[0])
        case OpenAiChoice():
            values = [option.value for option in asked.choices]
            return OpenAiChoiceAnswer(
                name=asked.name,
                choice=values[answer.best],
                probabilities=[
                    OpenAiChoiceProbability(value, share) for value, share in zip(values, shares, strict=True)
                ],
                confidence=answer.confidence,
            )
        case OpenAiScore():
            labels = [level.label for level in asked.levels]
            return OpenAiScoreAnswer(
                name=asked.name,
                score=answer.expected,
                probabilities=[
                    OpenAiLevelProbability(index, label, share)
                    for index, (label, share) in enumerate(zip(labels, shares, strict=True))
                ],
                confidence=answer.confidence,
            )
