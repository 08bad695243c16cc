"""The native dialect: what ``POST /v1/batches/score`` answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from scorer.dialects.dialect import Dialect
from scorer.dialects.ndjson import decode_lines
from scorer.dialects.ranking import best_items
from scorer.dialects.schema import (
    BatchUsage,
    Counts,
    ItemError,
    ItemResult,
    ItemUsage,
    PromptTokensDetails,
    ScoreRequest,
    ScoreResponse,
    StreamEnd,
    StreamTimings,
    Timings,
)
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import BatchPlan, ItemFault, ScoredBatch, ScoredItem
from scorer.scoring.readouts import LabelPlan
from scorer.templates.types import ReadoutKind


def native_dialect() -> Dialect[ScoreRequest]:
    return Dialect(
        decode=StrictDecoder(ScoreRequest).decode,
        to_request=lambda request: request,
        reply=_reply,
        salt=lambda request: request.cache.key,
    )


def native_lines_dialect() -> Dialect[ScoreRequest]:
    """The same, asked in lines of JSON."""
    return Dialect(
        decode=decode_lines,
        to_request=lambda request: request,
        reply=_reply,
        salt=lambda request: request.cache.key,
    )


def batch_usage(batch: ScoredBatch) -> BatchUsage:
    """Sums over all pairs, as the engine counted them."""
    stats = batch.usage
    return BatchUsage(
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=0,
        total_tokens=stats.prompt_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=stats.cached_tokens, cache_write_tokens=stats.kept_tokens
        ),
        shared_tokens=stats.shared_tokens,
        computed_tokens=stats.computed_tokens,
        truncated_tokens=batch.truncated_tokens,
    )


def item_error(fault: ItemFault) -> ItemError:
    return ItemError(
        code=fault.code,
        message=fault.message,
        retryable=fault.retryable,
        field=fault.field,
        value=fault.value,
        limit=fault.limit,
    )


def stream_end(batch: ScoredBatch) -> StreamEnd:
    """The last line of an answer in lines."""
    times = batch.times
    return StreamEnd(
        object="score_batch.end",
        timings=StreamTimings(
            tokenize_ms=milliseconds(times.tokenise_s),
            queue_ms=milliseconds(times.queue_s),
            ttft_ms=None if times.ttft_s is None else milliseconds(times.ttft_s),
            total_ms=milliseconds(times.total_s),
        ),
        **_summary(batch),
    )


def _reply(request: ScoreRequest, batch: ScoredBatch) -> ScoreResponse:
    plan, times = batch.plan, batch.times
    return ScoreResponse(
        object="score_batch",
        results=[item_result(item, plan, request) for item in chosen_items(batch.items, request.top_n)],
        timings=Timings(
            tokenize_ms=milliseconds(times.tokenise_s),
            queue_ms=milliseconds(times.queue_s),
            prefill_ms=milliseconds(times.prefill_s),
            readout_ms=milliseconds(times.readout_s),
            ttft_ms=None if times.ttft_s is None else milliseconds(times.ttft_s),
            total_ms=milliseconds(times.total_s),
        ),
        **_summary(batch),
    )


def _summary(batch: ScoredBatch) -> dict[str, Any]:
    """What an answer says of all pairs together, whether they stand in it or came before it in lines."""
    plan = batch.plan
    return {
        "id": batch.request_id,
        "model": batch.model,
        "template": plan.template,
        "order": plan.order,
        "readout": _readout_kind(plan),
        "calibration": plan.calibration,
        "created": int(time.time()),
        "counts": _counts(batch),
        "usage": batch_usage(batch),
    }


def _readout_kind(plan: BatchPlan) -> ReadoutKind:
    return "labels" if isinstance(plan.readouts[0], LabelPlan) else "likelihood"


def _counts(batch: ScoredBatch) -> Counts:
    faults = batch.faults
    errors = sum(fault.status == "error" for fault in faults)
    return Counts(ok=len(batch.items) - len(faults), error=errors, unscored=len(faults) - errors)


def chosen_items(items: list[ScoredItem], top_n: int | None) -> Iterable[ScoredItem]:
    """All in order; or the best ``top_n`` that have a score, then those that have none."""
    if top_n is None:
        return items
    best = best_items(items, top_n, by=lambda score: score.score)
    return [*best, *(item for item in items if not item.score)]


def item_result(item: ScoredItem, plan: BatchPlan, request: ScoreRequest) -> ItemResult:
    """The wire form of one pair."""
    query, document = plan.pairs[item.index]
    asked, about = request.queries[query], request.documents[document]
    query_id = None if isinstance(asked, str) else asked.id
    document_id = None if isinstance(about, str) else about.id
    template = UNSET if plan.templates is None else plan.templates[item.index]
    usage, score = _usage(item), item.result
    if isinstance(score, ItemFault):
        return ItemResult(
            index=item.index,
            query_index=query,
            document_index=document,
            query_id=query_id,
            document_id=document_id,
            status=score.status,
            template=template,
            usage=usage,
            error=item_error(score),
        )
    # the fields of a score stand in a result in the same order; by place, they are taken over all at once
    given = [UNSET if value is None else value for value in astuple(score)]
    fields: tuple[Any, ...] = (item.index, query, document, query_id, document_id, "ok", *given, template, usage)
    return ItemResult(*fields)


def _usage(item: ScoredItem) -> ItemUsage | UnsetType:
    usage = item.usage
    if usage is None:
        return UNSET
    return ItemUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        shared_tokens=usage.shared_tokens,
        computed_tokens=usage.computed_tokens,
        truncated_tokens=item.truncated_tokens,
    )


def milliseconds(seconds: float) -> float:
    """As they are answered."""
    return round(seconds * 1000, 3)
