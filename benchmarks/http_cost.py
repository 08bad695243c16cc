"""Processor time of HTTP's part in a request of 1,000 documents of 1 kB: ``python -m benchmarks.http_cost``.

Parsing and validating the body, and turning the engine's result into the encoded reply.
Rendering prompts, tokenising and the model are not in it; no model is needed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from benchmarks.summary import spread
from benchmarks.tables import table
from engine import LabelOutcome, RowResult, RowUsage, ScoreResult, TaskStats
from scorer.dialects.native import native_dialect
from scorer.dialects.schema import ScoreRequest
from scorer.scoring.batch import BatchPlan
from scorer.scoring.batch_results import scored_batch
from scorer.scoring.prompt_types import PairPrompt
from scorer.scoring.readouts import LabelPlan
from scorer.scoring.rows import plan_rows

_DOCUMENTS: Final = 1000
_DOCUMENT_BYTES: Final = 1000
_PROMPT_TOKENS: Final = 300
_REPEATS: Final = 30
_LIMIT_MS: Final = 10.0


def main() -> int:
    """Print what each part takes; 1 if the parts together take more than 10 ms."""
    body = request_body(_DOCUMENTS, _DOCUMENT_BYTES)
    dialect = native_dialect()
    request = dialect.decode(body)
    plan = _plan(request)
    result = _result(_DOCUMENTS)

    def reply() -> bytes:
        batch = scored_batch(
            plan, result, request_id="cost", model_name="model", tokenise_s=0.0, before_engine_s=0.0, total_s=0.0
        )
        return msgspec.json.encode(dialect.reply(request, batch))

    parts = {"parse and validate": lambda: dialect.decode(body), "build and serialise the reply": reply}
    spreads = {name: spread([cpu_ms(part) for _ in range(_REPEATS)]) for name, part in parts.items()}
    total = sum(one.median for one in spreads.values())
    rows = [(name, str(one)) for name, one in spreads.items()]
    print(
        f"{_DOCUMENTS:,} documents of {_DOCUMENT_BYTES:,} bytes: body {len(body):,} bytes, reply {len(reply()):,} bytes"
    )
    print(f"CPU ms, median (least–greatest) of {_REPEATS}\n")
    print(table(("part", "ms"), [*rows, ("together", f"{total:.2f} (limit {_LIMIT_MS:.0f})")]))
    return int(total > _LIMIT_MS)


def request_body(documents: int, document_bytes: int) -> bytes:
    """A native request with one query; every document has another text."""
    filler = "the quick brown fox jumps over the lazy dog while it rains in the valley; "
    texts = [
        f"{place:06d} {filler * (document_bytes // len(filler) + 1)}"[:document_bytes] for place in range(documents)
    ]
    return json.dumps({"queries": ["who jumps over the dog"], "documents": texts, "template": "yes-no"}).encode()


def cpu_ms(work: Callable[[], object]) -> float:
    """Processor time of this process while ``work`` runs once, in milliseconds."""
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e6


def _plan(request: ScoreRequest) -> BatchPlan:
    context = np.arange(_PROMPT_TOKENS, dtype=np.int32)
    prompts = [PairPrompt(context=context, target=None, reusable_tokens=40) for _ in request.documents]
    label_ids = (np.array([1], dtype=np.int32), np.array([2], dtype=np.int32))
    readouts = [LabelPlan(labels=("Yes", "No"), ids=label_ids, positive=0)] * len(prompts)
    return BatchPlan(
        template="yes-no@1",
        order="query_first",
        pairs=[(0, document) for document in range(len(request.documents))],
        prompts=[*prompts],
        readouts=readouts,
        rows=plan_rows(prompts, readouts, "auto"),
    )


def _result(rows: int) -> ScoreResult:
    usage = RowUsage(prompt_tokens=_PROMPT_TOKENS, cached_tokens=40, computed_tokens=_PROMPT_TOKENS - 40)
    outcomes = [LabelOutcome(logits=(place / rows, 0.5), log_sum_exp=None) for place in range(rows)]
    return ScoreResult(
        rows=tuple(RowResult(outcome=outcome, usage=usage) for outcome in outcomes),
        stats=TaskStats(task_id="cost", end="ok", num_rows=rows, first_score_s=0.0),
    )


if __name__ == "__main__":
    sys.exit(main())
