"""SGLang's decisions: choices, scores and yes-or-no questions about one input, answered by id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import sglang_error
from scorer.dialects.questions import (
    MAX_LEVELS,
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
from scorer.dialects.schema import MAX_OPTIONS, ScoreRequest
from scorer.dialects.score_parts import ScoreUsage, all_scores, score_usage
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import BatchPlan, ScoredBatch
from scorer.scoring.prompt_types import PairPrompt
from scorer.scoring.readouts import LabelPlan

FORMAT_VERSION: Final = 1
"""Of the wording here, that of the template for questions; SGLang counts its own wordings."""

QuestionId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
DecisionText: TypeAlias = str | dict[str, Any] | list[Any]
"""A text; anything else is read as compact JSON."""


class SglangOption(Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    description: DecisionText | None = None


class SglangChoice(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="choice"):
    """One of the options."""

    id: QuestionId
    question: DecisionText
    options: Annotated[list[SglangOption], Meta(min_length=2, max_length=MAX_OPTIONS)]


class SglangScore(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="score"):
    """One of the levels, in order."""

    id: QuestionId
    question: DecisionText
    levels: Annotated[list[DecisionText], Meta(min_length=2, max_length=MAX_LEVELS)]


class SglangYesNo(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="yes_no"):
    """A question, or a statement that may be true; `yes` and `no` say what the answers mean."""

    id: QuestionId
    question: DecisionText
    yes: DecisionText | None = None
    no: DecisionText | None = None


Asked: TypeAlias = SglangChoice | SglangScore | SglangYesNo


class SglangDecisionsRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Questions about one input. Unknown fields are refused."""

    input: DecisionText
    questions: Annotated[list[Asked], Meta(min_length=1)]
    temperature: Annotated[
        float, Meta(ge=0.01, le=100.0, description="Of the probabilities; `label_mass` is not changed by it.")
    ] = 1.0
    images: Annotated[list[Any] | None, Meta(description="Must be empty: the model reads text.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="Has no effect.")] = None
    prompt_format_version: Annotated[
        int | None, Meta(description=f"Must be {FORMAT_VERSION} if it is given: the wording of this server.")
    ] = None
    return_prompt_token_ids: Annotated[
        bool, Meta(description="Give the tokens of each prompt and of its labels, to be asked again at `/v1/score`.")
    ] = False
    model: Annotated[str, Meta(description="Ignored: there is one model. The reply names it.")] = "default"


class SglangDecision(Struct, frozen=True):
    """The answer to one question: `choice` has the option, `score` the mean level, counted from 0."""

    type: Literal["choice", "score", "yes_no"]
    probabilities: Annotated[dict[str, float], Meta(description="By option, by number of the level, or of yes and no.")]
    label_mass: Annotated[float, Meta(description="Probability of any of the answers among everything possible.")]
    choice: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    label_token_ids: list[int] | UnsetType = UNSET


class SglangDecisionsResponse(Struct, frozen=True):
    """Answers by the ids of the questions."""

    object: Literal["decisions"]
    model: str
    prompt_format_version: int
    answers: dict[str, SglangDecision]
    usage: ScoreUsage


def sglang_decisions_dialect() -> Dialect[SglangDecisionsRequest]:
    return Dialect(
        decode=StrictDecoder(SglangDecisionsRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=sglang_error,
        partial=False,
    )


def _to_request(spoken: SglangDecisionsRequest) -> ScoreRequest:
    if spoken.images:
        raise InvalidValue("the model that is served reads text only", field="images")
    if spoken.prompt_format_version not in {None, FORMAT_VERSION}:
        raise InvalidValue(
            f"prompt_format_version is {spoken.prompt_format_version}, this server words questions by {FORMAT_VERSION}",
            field="prompt_format_version",
            value=spoken.prompt_format_version,
            limit=FORMAT_VERSION,
        )
    refuse_thinking(spoken.chat_template_kwargs)
    ids = [asked.id for asked in spoken.questions]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise InvalidValue("two questions have the same id", field=f"questions[{index}].id")
    return questions_request(
        _worded(spoken.input, "input"), _questions(spoken), model=None, system="", temperature=spoken.temperature
    )


def _questions(spoken: SglangDecisionsRequest) -> list[Question]:
    return [_question(asked, f"questions[{index}]") for index, asked in enumerate(spoken.questions)]


def _question(asked: Asked, field: str) -> Question:
    text = _worded(asked.question, f"{field}.question")
    match asked:
        case SglangChoice():
            check_entries([option.name for option in asked.options], f"{field}.options", limit=MAX_OPTIONS)
            return choice_question(text, [Entry(each.name, _text(each.description)) for each in asked.options])
        case SglangScore():
            levels = [_worded(level, f"{field}.levels[{index}]") for index, level in enumerate(asked.levels)]
            return score_question(text, [Entry(level) for level in levels])
        case SglangYesNo():
            return yes_no_question(text, yes=_text(asked.yes), no=_text(asked.no), capitals=False)


def _worded(text: DecisionText, field: str) -> str:
    """The text, which must say something."""
    worded = _text(text) or ""
    if not worded.strip() or not text:
        raise InvalidValue(f"`{field}` is blank", field=field)
    return worded


def _text(text: DecisionText | None) -> str | None:
    return (
        text if text is None or isinstance(text, str) else json.dumps(text, ensure_ascii=False, separators=(",", ":"))
    )


def _reply(spoken: SglangDecisionsRequest, batch: ScoredBatch) -> SglangDecisionsResponse:
    scores = all_scores(batch, queries="questions", documents="input", one_document=True)
    answers = [answer_of(question, score) for question, score in zip(_questions(spoken), scores, strict=True)]
    return SglangDecisionsResponse(
        object="decisions",
        model=batch.model,
        prompt_format_version=FORMAT_VERSION,
        answers={
            asked.id: _decision(asked, answer, _tokens(batch.plan, index) if spoken.return_prompt_token_ids else None)
            for index, (asked, answer) in enumerate(zip(spoken.questions, answers, strict=True))
        },
        usage=score_usage(batch),
    )


def _decision(asked: Asked, answer: Answer, tokens: tuple[list[int], list[int]] | None) -> SglangDecision:
    prompt_token_ids, label_token_ids = (UNSET, UNSET) if tokens is None else tokens
    names = _names(asked)
    return SglangDecision(
        type="choice" if isinstance(asked, SglangChoice) else "score" if isinstance(asked, SglangScore) else "yes_no",
        probabilities=dict(zip(names, answer.probabilities, strict=True)),
        label_mass=answer.label_mass,
        choice=names[answer.best] if isinstance(asked, SglangChoice) else UNSET,
        score=answer.expected if isinstance(asked, SglangScore) else UNSET,
        prompt_token_ids=prompt_token_ids,
        label_token_ids=label_token_ids,
    )


def _names(asked: Asked) -> Sequence[str]:
    match asked:
        case SglangChoice():
            return [option.name for option in asked.options]
        case SglangScore():
            return [str(level) for level in range(len(asked.levels))]
        case SglangYesNo():
            return ["yes", "no"]


def _tokens(plan: BatchPlan, index: int) -> tuple[list[int], list[int]]:
    """Those of the prompt of a question, and of its labels.

    Raises:
        InvalidValue: a label has several tokens.
    """
    place = index if plan.items is None else plan.items[index].parts[0].prompt
    prompt, readout = plan.prompts[place], plan.readouts[place]
    assert isinstance(prompt, PairPrompt), "a question that has a score has a prompt"
    assert isinstance(readout, LabelPlan), "a question is read by its labels"
    if not readout.single_tokens:
        raise InvalidValue(
            "an answer has several tokens in this vocabulary, so it has no token id", field="return_prompt_token_ids"
        )
    return prompt.context.tolist(), [int(ids[0]) for ids in readout.ids]
