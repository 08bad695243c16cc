"""What the routes of vLLM that score pairs have in common: how texts are given, and the options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.schema import MAX_COUNT, REQUEST_ID, ScoreRequest, TruncationSide
from scorer.dialects.score_parts import GivenId, Salt, refuse_priority
from scorer.errors import InvalidValue

_REQUEST_ID = re.compile(REQUEST_ID)

TokenLimit: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]


class VllmTextPart(Struct, frozen=True):
    """A part of a text; there are no others here."""

    type: Literal["text"]
    text: str


class VllmContent(Struct, frozen=True):
    """A text in parts, which are joined by line ends."""

    content: Annotated[list[VllmTextPart], Meta(min_length=1)]


ScoreInput: TypeAlias = str | VllmContent
ScoreInputs: TypeAlias = ScoreInput | Annotated[list[ScoreInput], Meta(min_length=1)]


class VllmOptions(Struct, frozen=True, kw_only=True):
    """Unknown fields are ignored."""

    model: Annotated[str | None, Meta(description="Must be the served model if it is given.")] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_COUNT)] | None,
        Meta(
            description="Longest prompt; -1: what the model takes. Documents are cut to make it fit; without this and "
            "without `max_tokens_per_doc`, one that does not fit is an error."
        ),
    ] = None
    truncation_side: Annotated[
        TruncationSide | None,
        Meta(description="What a document that is cut loses: its end (also null) or its beginning."),
    ] = None
    max_tokens_per_query: Annotated[TokenLimit, Meta(description="Longer queries are cut. 0: no limit.")] = 0
    max_tokens_per_doc: Annotated[TokenLimit, Meta(description="Longer documents are cut. 0: no limit.")] = 0
    instruction: Annotated[str | None, Meta(description="Replaces the template's instruction.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="`instruction` in it wins over the field; other keys are ignored.")
    ] = None
    use_activation: Annotated[
        bool | None, Meta(description="`false`: log-odds of the relevance instead of the relevance.")
    ] = None
    request_id: Annotated[GivenId | None, Meta(description="Comes back in `id`.")] = None
    priority: Annotated[int, Meta(description="Must be 0: requests are served in order of arrival.")] = 0
    cache_salt: Annotated[Salt | None, Meta(description="Only requests with the same salt meet in the cache.")] = None


def pairs_request(
    spoken: VllmOptions, queries: Sequence[str], documents: Sequence[str], *, names: tuple[str, str]
) -> ScoreRequest:
    """One query and one document, one and many, or equally many, in native terms.

    Args:
        names: What the spelling calls queries and documents, for errors.

    Raises:
        InvalidValue: there are more queries and another number of documents, or an option cannot be served.
    """
    refuse_priority(spoken.priority)
    if len(queries) > 1 and len(queries) != len(documents):
        raise InvalidValue(
            f"there are {len(queries)} {names[0]} and {len(documents)} {names[1]}; "
            "one and one, one and many, or equally many are wanted",
            field=names[1],
            value=len(documents),
            limit=len(queries),
        )
    limit = spoken.truncate_prompt_tokens
    if limit == 0:
        raise InvalidValue("no token is left of a prompt of 0 tokens", field="truncate_prompt_tokens", value=0, limit=1)
    return ScoreRequest(
        queries=list(queries),
        documents=list(documents),
        pairs="all" if len(queries) == 1 else [(index, index) for index in range(len(queries))],
        model=spoken.model,
        instruction=_instruction(spoken),
        truncate="document" if limit is not None or spoken.max_tokens_per_doc else "error",
        truncation_side=spoken.truncation_side or "right",
        max_tokens_per_prompt=None if limit in (None, -1) else limit,
        max_tokens_per_doc=spoken.max_tokens_per_doc or None,
        max_tokens_per_query=spoken.max_tokens_per_query or None,
        request_id=own_request_id(spoken.request_id),
    )


def texts_of(inputs: ScoreInputs) -> list[str]:
    """The texts, each put together from its parts."""
    return [
        each if isinstance(each, str) else "\n".join(part.text for part in each.content)
        for each in (inputs if isinstance(inputs, list) else [inputs])
    ]


def own_request_id(given: str | None) -> str | None:
    """The id under which a request is logged: the given one, if it is a plain short name."""
    return given if given is not None and _REQUEST_ID.match(given) else None


def _instruction(spoken: VllmOptions) -> str | None:
    given = (spoken.chat_template_kwargs or {}).get("instruction", spoken.instruction)
    if not isinstance(given, str | None):
        raise InvalidValue("the instruction must be a text", field="chat_template_kwargs.instruction")
    return given
