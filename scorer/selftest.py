"""Golden pairs: does the loaded model, through the loaded template, order what is plain to order?

A wrong template, a broken kernel or damaged weights give confident nonsense; this finds it
before a client does.
"""

from __future__ import annotations

from scorer.batch import ItemFault
from scorer.errors import Refusal
from scorer.model_host import LoadedModel
from scorer.offline import score_now
from scorer.schema import CacheSpec, ScoreRequest

_QUERIES = ("What is the capital of France?", "How do bees make honey?")
_DOCUMENTS = (
    "Paris is the capital and the largest city of France. It lies on the river Seine.",
    "Bees collect nectar from flowers, carry it to the hive and turn it into honey there.",
)


def self_test(model: LoadedModel) -> str | None:
    """Why the model must not be trusted, or None.

    Two queries meet two documents; each query must score its own document above the other one.
    Labels are checked on the way: they must have distinct tokens. Nothing stays in the cache.

    Raises:
        EngineError: the pairs could not be scored.
    """
    request = ScoreRequest(queries=list(_QUERIES), documents=list(_DOCUMENTS), cache=CacheSpec(keep="none"))
    try:
        batch = score_now(request, model, request_id="self-test")
    except Refusal as error:
        return f"the golden pairs were refused: {error}"
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
