"""The same scoring without a web server: for commands that read files."""

from __future__ import annotations

import time

from engine import ScoreTask
from scorer.dialects.schema import ScoreRequest
from scorer.model_host import LoadedModel
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.batch_plan import plan_batch
from scorer.scoring.batch_results import scored_batch

_NO_LIMIT = 2**31 - 1


def score_now(request: ScoreRequest, model: LoadedModel, *, request_id: str = "offline") -> ScoredBatch:
    """Score ``request`` and wait for it; the scores are those that the service gives.

    The number of pairs is not limited, ``deadline_ms`` counts from now.

    Raises:
        Refusal: a value of the request cannot be served.
        EngineError: the engine could not score it.
    """
    arrived_s = time.monotonic()
    plan = plan_batch(request, model, max_pairs=_NO_LIMIT)
    submitted_s = time.monotonic()
    result = None
    if plan.rows:
        deadline_s = None if request.deadline_ms is None else arrived_s + request.deadline_ms / 1000
        task = ScoreTask(task_id=request_id, namespace=model.namespace_for(None), rows=plan.rows, deadline_s=deadline_s)
        result = model.engine.submit(task).result()
    return scored_batch(
        plan,
        result,
        request_id=request_id,
        model_name=model.name,
        tokenise_s=submitted_s - arrived_s,
        before_engine_s=submitted_s - arrived_s,
        total_s=time.monotonic() - arrived_s,
    )
