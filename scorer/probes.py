"""What operators and their machines ask: is it alive, is it ready, what does it serve, how is it doing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta, Struct

from scorer.errors import NotReady
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel, ModelHost, Phase
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


class Info(Struct, frozen=True):
    """What is running."""

    version: str
    model: str
    model_revision: str
    dtype: str
    kv_dtype: str
    device: str
    kernels: str
    default_template: str
    templates: list[str]
    calibration: Annotated[str | None, Meta(description="`name@version` of the calibration, if one is loaded.")]
    block_size: int
    num_blocks: int
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

    @get("/health/ready")
    async def ready() -> Response[bytes]:
        reason = host.readiness()
        body = Readiness(status="ready" if reason is None else "not_ready", phase=host.phase, reason=reason)
        return _json(body, status=200 if reason is None else 503)

    @get("/metrics")
    async def scrape(request: Request[Any, Any, Any]) -> Response[bytes]:
        body, content_type = metrics.exposition(request.headers.get("accept"))
        return Response(body, headers={"content-type": content_type})

    @get("/v1/models")
    async def models() -> Response[bytes]:
        model = _loaded(host)
        entry = ModelEntry(
            id=model.name,
            object="model",
            created=math.floor(started_at),
            owned_by="radix-scorer",
            max_model_len=model.engine.info.max_row_tokens,
        )
        return _json(ModelList(object="list", data=[entry]))

    @get("/info")
    async def info() -> Response[bytes]:
        model = _loaded(host)
        engine = model.engine.info
        return _json(
            Info(
                version=package_version(),
                model=model.name,
                model_revision=engine.revision,
                dtype=engine.dtype,
                kv_dtype=engine.kv_dtype,
                device=engine.device,
                kernels=engine.kernels,
                default_template=model.prompts.default.template.id,
                templates=model.prompts.names,
                calibration=model.calibration.id if model.calibration else None,
                block_size=engine.block_size,
                num_blocks=engine.num_blocks,
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
        )

    return live, ready, scrape, models, info


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
