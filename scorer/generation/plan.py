"""What a generation asks of the engine: the ids of its prompt, how tokens are chosen, where they end."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from engine import Sampling, TokenIds
from scorer.errors import InvalidValue
from scorer.generation.schema import GenerateRequest
from scorer.model_host import LoadedModel
from scorer.scoring.batch_plan import check_model
from scorer.scoring.prompt_types import PromptError, PromptLimits
from scorer.scoring.prompts import PromptBuilder, PromptInputError

_NEW_SEED_BITS = 32
_SOME_QUERY = "a"
"""Stands where the model is to write the query: what precedes a query is the same for all that begin with a letter."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationPlan:
    """A request that was read.

    Args:
        template: None: the prompt is the caller's own.
        end_ids: Tokens with which the model ends what it says.
    """

    request: GenerateRequest
    template: str | None
    tokens: TokenIds
    sampling: Sampling
    end_ids: frozenset[int]


def plan_generation(request: GenerateRequest, model: LoadedModel) -> GenerationPlan:
    """Everything that can be known of a request without running the model.

    Raises:
        InvalidValue: a value of the request cannot be served; names the field.
        UnknownModel: another model is asked for.
    """
    check_model(request.model, model)
    _check_parts(request)
    most = model.engine.info.max_row_tokens - request.max_tokens + 1  # the last token is never run
    builder = None if request.prompt is not None else _choose(request, model)
    tokens = _own_prompt(request, model) if builder is None else _filled(request, builder, most)
    if not 1 <= len(tokens) <= most:
        raise InvalidValue(
            f"the prompt has {len(tokens)} tokens; with max_tokens {request.max_tokens} it may have 1 to {most}",
            field="prompt",
            value=len(tokens),
            limit=most,
        )
    return GenerationPlan(
        request=request,
        template=None if builder is None else builder.template.id,
        tokens=tokens,
        sampling=Sampling(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            seed=secrets.randbits(_NEW_SEED_BITS) if request.seed is None else request.seed,
        ),
        end_ids=model.texts.end_ids | _closing_ids(builder or model.prompts.default),
    )


def _check_parts(request: GenerateRequest) -> None:
    of_template = ("query", "document", "template", "instruction", "system")
    given = [name for name in of_template if getattr(request, name) is not None]
    if request.prompt is None:
        if request.query is None and request.template is None:
            raise InvalidValue("a prompt is needed, or a query for a template, or a template", field="prompt")
    elif given or request.order != "auto":
        field = given[0] if given else "order"
        raise InvalidValue(f"a prompt of your own is complete; leave {field} out", field=field)


def _choose(request: GenerateRequest, model: LoadedModel) -> PromptBuilder:
    try:
        builder = model.prompts.choose(request.template, "labels" if request.template is None else None)
    except InvalidValue as error:
        raise InvalidValue(str(error), field="template") from error
    if builder.template.listing is not None:
        raise InvalidValue(
            f"template {builder.template.id} lists {builder.template.listing.of}, which cannot be given here",
            field="template",
        )
    writes_query = builder.template.readout == "likelihood"
    if writes_query and request.query is not None:
        raise InvalidValue(
            f"template {builder.template.id} ends in the query, which is what the model writes here; leave query out",
            field="query",
        )
    if not writes_query and request.query is None:
        raise InvalidValue(f"template {builder.template.id} needs a query", field="query")
    return builder


def _own_prompt(request: GenerateRequest, model: LoadedModel) -> TokenIds:
    assert request.prompt is not None, "a request without a template has a prompt"
    (ids,) = model.texts.encode([request.prompt])
    return np.concatenate([model.texts.lead_ids, ids])


def _filled(request: GenerateRequest, builder: PromptBuilder, most: int) -> TokenIds:
    limits = PromptLimits(max_prompt_tokens=max(most, 0), truncate_documents=False)
    try:
        (prompt,) = builder.build(
            [(0, 0)],
            queries=[_SOME_QUERY if request.query is None else request.query],
            documents=[request.document or ""],
            instruction=request.instruction,
            system=request.system,
            order=request.order,
            limits=limits,
        )
    except PromptInputError as error:
        raise InvalidValue(str(error), field=_FIELDS.get(error.param, error.param)) from error
    if isinstance(prompt, PromptError):
        raise InvalidValue(prompt.message, field=prompt.slot, value=prompt.tokens, limit=prompt.limit)
    return prompt.context


_FIELDS = {"queries[0]": "query", "documents[0]": "document"}


def _closing_ids(builder: PromptBuilder) -> frozenset[int]:
    """The special token that closes the assistant's turn, if the chat format has one."""
    closing = builder.chat.marks["assistant_close"].strip()
    return frozenset(number for text, number in builder.special_tokens.items() if closing and closing == text)
