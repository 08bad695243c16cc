"""What a dialect can ask for, and how each of it becomes rows."""

from __future__ import annotations

from typing import TypeAlias

from scorer.dialects.schema import ScoreRequest
from scorer.model_host import LoadedModel
from scorer.scoring.ask import text_of
from scorer.scoring.batch import BatchPlan
from scorer.scoring.batch_plan import plan_batch
from scorer.scoring.prompt_plan import plan_prompts
from scorer.scoring.prompt_request import PromptRequest

InternalRequest: TypeAlias = ScoreRequest | PromptRequest


def num_characters(request: InternalRequest) -> int:
    """Length of all texts that a request is about; token ids are none."""
    if isinstance(request, PromptRequest):
        return sum(len(text) for text in (request.query, *request.items) if isinstance(text, str))
    return sum(len(text_of(item)) for items in (request.queries, request.documents) for item in items)


def plan_request(request: InternalRequest, model: LoadedModel, *, max_pairs: int) -> BatchPlan:
    """Everything that can be known of a request without running the model.

    Raises:
        InvalidValue: a value of the request cannot be served; names the field.
        UnknownModel: another model is asked for.
    """
    if isinstance(request, PromptRequest):
        return plan_prompts(request, model, max_pairs=max_pairs)
    return plan_batch(request, model, max_pairs=max_pairs)
