"""Is what was loaded fit to be served: are the prompts right, does the model order what is plain to order?

A wrong template, a broken kernel or damaged weights give confident nonsense; this finds it
before a client does.
"""

from __future__ import annotations

from typing import Final

from scorer.dialects.schema import CacheSpec, QueryItem, ReadoutSpec, ScoreRequest
from scorer.errors import Refusal
from scorer.model_host import LoadedModel
from scorer.offline.scoring import score_now
from scorer.scoring.batch import ItemFault, ScoredBatch
from scorer.templates.prompt_check import check_prompts

_QUERIES: Final = ("What is the capital of France?", "How do bees make honey?")
_DOCUMENTS: Final = (
    "Paris is the capital and the largest city of France. It lies on the river Seine.",
    "Bees collect nectar from flowers, carry it to the hive and turn it into honey there.",
)
_OPTIONS: Final = ("Paris", "From the nectar of flowers")
_NOTHING: Final = CacheSpec(keep="none")


def self_test(model: LoadedModel) -> str | None:
    """Why the model must not be trusted, or None.

    The prompts of every template that is offered are checked, see :mod:`scorer.templates.prompt_check`. Then
    two queries meet two documents through the default template, whose labels are checked on the
    way; each query must score its own document above the other one. A template that lists options
    is asked the queries instead, and each must choose its own answer. Nothing stays in the cache.

    Raises:
        EngineError: the pairs could not be scored.
    """
    for builder in model.prompts.builders:
        if (fault := check_prompts(builder)) is not None:
            return fault
    listing = model.prompts.default.template.listing
    try:
        if listing is not None and listing.of == "options":
            return _check_choices(score_now(_choices(), model, request_id="self-test"))
        return _check_order(score_now(_pairs(), model, request_id="self-test"))
    except Refusal as error:
        return f"the golden pairs were refused: {error}"


def _pairs() -> ScoreRequest:
    return ScoreRequest(queries=list(_QUERIES), documents=list(_DOCUMENTS), cache=_NOTHING)


def _choices() -> ScoreRequest:
    """Each query about its own document, in both orders of the options."""
    readout = ReadoutSpec(debias="reverse")
    queries: list[str | QueryItem] = [
        QueryItem(text=text, options=list(_OPTIONS), readout=readout) for text in _QUERIES
    ]
    pairs = [(index, index) for index in range(len(_QUERIES))]
    return ScoreRequest(queries=queries, documents=list(_DOCUMENTS), pairs=pairs, cache=_NOTHING)


def _check_order(batch: ScoredBatch) -> str | None:
    scores: dict[tuple[int, int], float] = {}
    for item, pair in zip(batch.items, batch.plan.pairs, strict=True):
        if isinstance(item.result, ItemFault):
            return f"golden pair {item.index} has no score: {item.result.message}"
        scores[pair] = item.result.score
    for query in range(len(_QUERIES)):
        own, other = scores[query, query], scores[query, 1 - query]
        if not own > other:
            return f"golden query {query} scores {own:g} with its own document and {other:g} with the other one"
    return None


def _check_choices(batch: ScoredBatch) -> str | None:
    for query, item in enumerate(batch.items):
        if isinstance(item.result, ItemFault):
            return f"golden query {query} has no answer: {item.result.message}"
        own = (item.result.probabilities or [0.0] * len(_OPTIONS))[query]
        if not own > 1 / len(_OPTIONS):
            return f"golden query {query} gives its own answer a probability of {own:g}"
    return None
