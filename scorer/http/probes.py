"""What operators and their machines ask: is it alive, is it ready, what does it serve, how is it doing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta, Struct

from scorer.dialects.error_forms import openai_error
from scorer.errors import InvalidValue, NotReady
from scorer.http.edge import ERROR_FORM
from scorer.http.request_record import record_of
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel, ModelHost, Phase
from scorer.scoring.batch_plan import check_model
from scorer.service import NUM_WORKERS
from scorer.settings import Settings
from scorer.version import package_version


class Liveness(Struct, frozen=True):
    """`dead` asks for a restart: the model failed to load, or the engine has died."""

    status: Literal["alive", "dead"]


class Readiness(Struct, frozen=True, omit_defaults=True):
    """Whether requests are served, and if not, why."""

    status: Literal["ready", "not_ready"]
    phase: Phase
    reason: str | None = None


class ModelEntry(Struct, frozen=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: Annotated[int, Meta(description="Longest prompt in tokens.")]


class ModelList(Struct, frozen=True):
    object: Literal["list"]
    data: list[ModelEntry]


class Limits(Struct, frozen=True):
    """What a request may ask for."""

    max_body_bytes: int
    max_pairs: int
    max_prompt_tokens: int
    max_queued_tokens: Annotated[int, Meta(description="New tokens that may wait, over all requests.")]
    max_concurrent_requests: int
    max_deadline_ms: Annotated[int, Meta(description="Also the deadline of a request that names none.")]
    body_timeout_ms: int


class LabelNames(Struct, frozen=True):
    """Labels of ``/predict`` by number and numbers by label."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(Struct, frozen=True):
    reranker: LabelNames


class Info(Struct, frozen=True, kw_only=True):
    """What is running. The first fields are those of text-embeddings-inference."""

    model_id: str
    model_sha: Annotated[str | None, Meta(description="Content hash of the checkpoint.")]
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: Annotated[int, Meta(description="Longest prompt in tokens.")]
    max_batch_tokens: Annotated[int, Meta(description="New tokens of one forward pass.")]
    max_batch_requests: int | None = None
    max_client_batch_size: Annotated[int, Meta(description="Most pairs of one request; larger ones are refused.")]
    auto_truncate: Annotated[bool, Meta(description="Whether texts are cut where a request does not say.")]
    tokenization_workers: int
    sha: str | None = None
    docker_label: str | None = None
    version: str
    model: str
    model_revision: str
    dtype: str
    linear_dtype: str
    kv_dtype: str
    device: str
    kernels: str
    cuda_graphs: Annotated[
        list[int], Meta(description="Tokens of the steps that are replayed as a CUDA graph; none where none are.")
    ]
    default_template: str
    templates: list[str]
    calibration: Annotated[str | None, Meta(description="`name@version` of the calibration, if one is loaded.")]
    block_size: int
    num_blocks: int
    weight_bytes: Annotated[int, Meta(description="Memory that the weights take.")]
    kv_bytes_per_token: int
    limits: Limits


def probe_routes(
    host: ModelHost, metrics: Metrics, settings: Settings, *, started_at: float
) -> Sequence[HTTPRouteHandler]:
    """The routes for operators.

    Args:
        started_at: Unix time at which the service started.
    """

    @get("/health/live")
    async def live() -> Response[bytes]:
        alive = host.is_alive()
        return _json(Liveness(status="alive" if alive else "dead"), status=200 if alive else 503)

    @get(["/health/ready", "/health"])
    async def ready() -> Response[bytes]:
        reason = host.readiness()
        body = Readiness(status="ready" if reason is None else "not_ready", phase=host.phase, reason=reason)
        return _json(body, status=200 if reason is None else 503)

    @get("/metrics")
    async def scrape(request: Request[Any, Any, Any]) -> Response[bytes]:
        body, content_type = metrics.exposition(request.headers.get("accept"))
        return Response(body, headers={"content-type": content_type})

    @get("/v1/models", opt={ERROR_FORM: openai_error})
    async def models() -> Response[bytes]:
        return _json(ModelList(object="list", data=[_entry(_loaded(host), started_at)]))

    @get("/v1/models/{model_id:path}")
    async def one_model(request: Request[Any, Any, Any]) -> Response[bytes]:
        record_of(request.scope).error_form = openai_error
        model = _loaded(host)
        check_model(str(request.path_params["model_id"]).removeprefix("/"), model)
        return _json(_entry(model, started_at))

    @get("/info")
    async def info() -> Response[bytes]:
        return _json(_info(_loaded(host), settings))

    return live, ready, scrape, models, one_model, info


def _entry(model: LoadedModel, started_at: float) -> ModelEntry:
    return ModelEntry(
        id=model.name,
        object="model",
        created=math.floor(started_at),
        owned_by="radix-scorer",
        max_model_len=model.engine.info.max_row_tokens,
    )


def _info(model: LoadedModel, settings: Settings) -> Info:
    engine = model.engine.info
    return Info(
        model_id=model.name,
        model_sha=engine.revision,
        model_dtype=engine.dtype,
        served_model_name=model.name,
        model_type=ModelType(reranker=_label_names(model)),
        max_concurrent_requests=settings.max_concurrent_requests,
        max_input_length=engine.max_row_tokens,
        max_batch_tokens=engine.step_tokens,
        max_client_batch_size=settings.max_pairs,
        auto_truncate=True,
        tokenization_workers=NUM_WORKERS,
        version=package_version(),
        model=model.name,
        model_revision=engine.revision,
        dtype=engine.dtype,
        linear_dtype=engine.linear_dtype,
        kv_dtype=engine.kv_dtype,
        device=engine.device,
        kernels=engine.kernels,
        cuda_graphs=list(engine.replayed_tokens),
        default_template=model.prompts.default.template.id,
        templates=model.prompts.names,
        calibration=model.calibration.id if model.calibration else None,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        weight_bytes=engine.weight_bytes,
        kv_bytes_per_token=engine.kv_bytes_per_token,
        limits=Limits(
            max_body_bytes=settings.max_body_bytes,
            max_pairs=settings.max_pairs,
            max_prompt_tokens=engine.max_row_tokens,
            max_queued_tokens=engine.max_queued_tokens,
            max_concurrent_requests=settings.max_concurrent_requests,
            max_deadline_ms=math.floor(settings.request_timeout_s * 1000),
            body_timeout_ms=math.floor(settings.body_timeout_s * 1000),
        ),
    )


def _label_names(model: LoadedModel) -> LabelNames:
    try:
        labels = model.prompts.choose(None, "labels").template.labels
    except InvalidValue:  # none of the templates for labels fits the model
        labels = ()
    return LabelNames(
        id2label={str(number): label for number, label in enumerate(labels)},
        label2id={label: number for number, label in enumerate(labels)},
    )


def _loaded(host: ModelHost) -> LoadedModel:
    """The model, even of a service that takes no requests any more.

    Raises:
        NotReady: it is not loaded.
    """
    if host.model is None:
        raise NotReady(host.readiness() or "the model is loading", retry_after_s=2.0)
    return host.model


def _json(body: Struct, *, status: int = 200) -> Response[bytes]:
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )
