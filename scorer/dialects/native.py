"""The native dialect: what ``POST /v1/batches/score`` answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from msgspec import UNSET, UnsetType

from scorer.dialects.dialect import Dialect
from scorer.dialects.ndjson import decode_lines
from scorer.dialects.ranking import best_items
from scorer.dialects.schema import (
    BatchUsage,
    Counts,
    ItemError,
    ItemResult,
    ItemStatus,
    ItemUsage,
    PromptTokensDetails,
    QueryItem,
    ScoreRequest,
    ScoreResponse,
    StreamEnd,
    StreamTimings,
    TextItem,
    Timings,
)
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import BatchPlan, ItemFault, ScoredBatch, ScoredItem
from scorer.scoring.readouts import LabelPlan
from scorer.templates.types import ReadoutKind

V = TypeVar("V")


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
    plan, times = batch.plan, batch.times
    return StreamEnd(
        id=batch.request_id,
        object="score_batch.end",
        model=batch.model,
        template=plan.template,
        order=plan.order,
        readout=_readout_kind(plan),
        calibration=plan.calibration,
        created=int(time.time()),
        counts=_counts(batch),
        usage=batch_usage(batch),
        timings=StreamTimings(
            tokenize_ms=milliseconds(times.tokenise_s),
            queue_ms=milliseconds(times.queue_s),
            ttft_ms=None if times.ttft_s is None else milliseconds(times.ttft_s),
            total_ms=milliseconds(times.total_s),
        ),
    )


def _reply(request: ScoreRequest, batch: ScoredBatch) -> ScoreResponse:
    plan, times = batch.plan, batch.times
    return ScoreResponse(
        id=batch.request_id,
        object="score_batch",
        model=batch.model,
        template=plan.template,
        order=plan.order,
        readout=_readout_kind(plan),
        calibration=plan.calibration,
        created=int(time.time()),
        results=[item_result(item, plan, request) for item in chosen_items(batch.items, request.top_n)],
        counts=_counts(batch),
        usage=batch_usage(batch),
        timings=Timings(
            tokenize_ms=milliseconds(times.tokenise_s),
            queue_ms=milliseconds(times.queue_s),
            prefill_ms=milliseconds(times.prefill_s),
            readout_ms=milliseconds(times.readout_s),
            ttft_ms=None if times.ttft_s is None else milliseconds(times.ttft_s),
            total_ms=milliseconds(times.total_s),
        ),
    )


def _readout_kind(plan: BatchPlan) -> ReadoutKind:
    return "labels" if isinstance(plan.readouts[0], LabelPlan) else "likelihood"


def _counts(batch: ScoredBatch) -> Counts:
    statuses = Counter(_status(item) for item in batch.items)
    return Counts(ok=statuses["ok"], error=statuses["error"], unscored=statuses["unscored"])


def chosen_items(items: list[ScoredItem], top_n: int | None) -> Iterable[ScoredItem]:
    """All in order; or the best ``top_n`` that have a score, then those that have none."""
    if top_n is None:
        return items
    best = best_items(items, top_n, by=lambda score: score.score)
    return [*best, *(item for item in items if not item.score)]


def item_result(item: ScoredItem, plan: BatchPlan, request: ScoreRequest) -> ItemResult:
    """The wire form of one pair."""
    query, document = plan.pairs[item.index]
    template = UNSET if plan.templates is None else plan.templates[item.index]
    query_id, document_id = _id_of(request.queries[query]), _id_of(request.documents[document])
    score = item.result
    if isinstance(score, ItemFault):
        return ItemResult(
            index=item.index,
            query_index=query,
            document_index=document,
            query_id=query_id,
            document_id=document_id,
            status=score.status,
            template=template,
            usage=_usage(item),
            error=item_error(score),
        )
    return ItemResult(
        index=item.index,
        query_index=query,
        document_index=document,
        query_id=query_id,
        document_id=document_id,
        status="ok",
        score=score.score,
        relevance=score.relevance,
        label=_given(score.label),
        labels=_given(score.labels),
        label_mass=_given(score.label_mass),
        choice=_given(score.choice),
        probabilities=_given(score.probabilities),
        log_prob_sum=_given(score.log_prob_sum),
        target_tokens=_given(score.target_tokens),
        spread=_given(score.spread),
        agreement=_given(score.agreement),
        num_chunks=_given(score.num_chunks),
        best_chunk=_given(score.best_chunk),
        template=template,
        usage=_usage(item),
    )


def _status(item: ScoredItem) -> ItemStatus:
    return item.result.status if isinstance(item.result, ItemFault) else "ok"


def _usage(item: ScoredItem) -> ItemUsage | UnsetType:
    if item.usage is None:
        return UNSET
    return ItemUsage(
        prompt_tokens=item.usage.prompt_tokens,
        cached_tokens=item.usage.cached_tokens,
        shared_tokens=item.usage.shared_tokens,
        computed_tokens=item.usage.computed_tokens,
        truncated_tokens=item.truncated_tokens,
    )


def _id_of(item: str | TextItem | QueryItem) -> str | None:
    return None if isinstance(item, str) else item.id


def milliseconds(seconds: float) -> float:
    """As they are answered."""
    return round(seconds * 1000, 3)


def _given(value: V | None) -> V | UnsetType:
    return UNSET if value is None else value
