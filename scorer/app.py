"""Builds and wires everything; the one module that knows the real engine."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, Response
from litestar.config.compression import CompressionConfig
from litestar.exceptions import HTTPException

from engine import CheckpointError, DeviceError, EngineObserver
from scorer.calibration.calibration import CalibrationError, check_calibration, read_calibration
from scorer.dialects.rerank_routes import rerank_routes
from scorer.dialects.routes import ScoringGate, score_route
from scorer.dialects.score_routes import score_routes
from scorer.errors import INTERNAL, answer_for, failure_of
from scorer.fetch import DEFAULT_MODEL, ModelNotFoundError, find_adapter, find_model
from scorer.generation.route import UNCOMPRESSED, generate_route
from scorer.generation.service import GenerationService
from scorer.http.admission import Admission
from scorer.http.callers import Callers, read_key_file
from scorer.http.edge import Edge, error_forms
from scorer.http.pages import page_routes
from scorer.http.probes import probe_routes
from scorer.http.request_record import record_of
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel, ModelHost
from scorer.offline.pair_lines import InputError
from scorer.scoring.prompts import PromptBuilder
from scorer.scoring.raw_texts import RawTexts
from scorer.selftest import self_test
from scorer.service import ScoringService
from scorer.settings import Settings
from scorer.templates.catalogue import PromptCatalogue
from scorer.templates.chat_formats import detect_chat_format, find_chat_format
from scorer.templates.registry import TemplateError, builtin_templates, find_template, template_for_model
from scorer.tokens.text_tokens import TextMemo
from scorer.tokens.tokenizer_files import LoadedTokenizer, load_tokenizer
from scorer.version import package_version
from scorer.warm_file import warm_cache

_LOG = logging.getLogger(__name__)

LOAD_ERRORS: Final = (ModelNotFoundError, CheckpointError, DeviceError, TemplateError, CalibrationError)
"""What stands in the way of a model and is the operator's to change; the message says all there is to say."""

# Most clients accept gzip unasked, also those beside the service: only what is worth it, and lightly.
_COMPRESS_BYTES = 64 * 1024
_COMPRESS_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The ASGI application and the parts that whoever runs it has to know."""

    asgi: Edge
    host: ModelHost
    admission: Admission


def build_application(
    settings: Settings,
    metrics: Metrics,
    load: Callable[[], LoadedModel],
    *,
    test: Callable[[LoadedModel], str | None],
) -> Application:
    """Wire the service around whatever ``load`` gives.

    Args:
        load: Called in a thread when the application starts.
        test: Why the loaded model must not be trusted, or None.

    Raises:
        KeyFileError: the file of keys that the settings name cannot be used.
    """
    host = ModelHost(
        load,
        test,
        require_self_test=settings.self_test == "require",
        on_loaded=lambda model, passed: _publish(metrics, model, passed=passed),
        warm=None if settings.warm_file is None else partial(warm_cache, Path(settings.warm_file)),
        expected=(*LOAD_ERRORS, InputError),
    )
    admission = Admission(max_requests=settings.max_concurrent_requests, max_buffered_bytes=settings.max_buffered_bytes)
    service = ScoringService(
        host=host,
        admission=admission,
        metrics=metrics,
        max_pairs=settings.max_pairs,
        request_timeout_s=settings.request_timeout_s,
    )
    generations = GenerationService(host=host, metrics=metrics, request_timeout_s=settings.request_timeout_s)
    gate = ScoringGate(
        callers=Callers(
            keys=None if settings.api_keys_file is None else read_key_file(Path(settings.api_keys_file)),
            header=settings.tenant_header,
        ),
        service=service,
        admission=admission,
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
    )

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        host.start()
        try:
            yield
        finally:
            await host.close(drain_s=settings.drain_timeout_s)
            service.close()

    handlers = [
        score_route(gate),
        *score_routes(gate),
        *rerank_routes(gate),
        generate_route(gate, generations),
        *probe_routes(host, metrics, settings, started_at=time.time()),
        *page_routes(),
    ]
    app = Litestar(
        route_handlers=handlers,
        lifespan=[lifespan],
        exception_handlers={HTTPException: _answer_error, Exception: _answer_error},
        compression_config=CompressionConfig(
            backend="gzip",
            minimum_size=_COMPRESS_BYTES,
            gzip_compress_level=_COMPRESS_LEVEL,
            exclude_opt_key=UNCOMPRESSED,
        ),
        openapi_config=None,  # handlers read their bodies themselves: see scorer.openapi
        logging_config=None,
        request_max_body_size=None,  # counted in scorer.http.json_body
    )
    edge = Edge(app, metrics, error_forms(handlers))
    return Application(asgi=edge, host=host, admission=admission)


def load_model(settings: Settings, environ: Mapping[str, str], observer: EngineObserver) -> LoadedModel:
    """The real model: tokenizer, templates and engine.

    Raises:
        ModelNotFoundError: there is no such model or adapter.
        CheckpointError, DeviceError: it cannot be loaded.
        TemplateError: the template does not fit it.
        CalibrationError: the calibration cannot be read or was fitted on something else.
    """
    # PyTorch takes seconds to import; the service answers probes before that.
    from engine.runner import start_engine  # noqa: PLC0415

    path = find_model(settings.model or DEFAULT_MODEL.name, environ)
    adapter = None if settings.adapter is None else find_adapter(settings.adapter, environ)
    memo = TextMemo(settings.memo_tokens)
    tokenizer = load_tokenizer(path)
    prompts = load_prompts(
        tokenizer,
        memo,
        template=settings.template,
        chat_format=settings.chat_format,
        model=settings.model or DEFAULT_MODEL.name,
    )
    calibration = None if settings.calibration is None else read_calibration(Path(settings.calibration))
    engine = start_engine(path, settings.engine, observer, adapter=adapter)
    if calibration is not None:
        try:
            check_calibration(calibration, revision=engine.info.revision, templates=prompts.names)
        except CalibrationError:
            engine.close(drain_s=0.0)
            raise
    return LoadedModel(
        engine=engine,
        prompts=prompts,
        texts=RawTexts(tokenizer, memo),
        memo=memo,
        name=settings.model_name or engine.info.model,
        calibration=calibration,
    )


def load_prompts(
    tokenizer: LoadedTokenizer, memo: TextMemo, *, template: str | None, chat_format: str | None, model: str = ""
) -> PromptCatalogue:
    """The template that is named (None: the one that suits a model of this name), and all others that fit.

    Raises:
        TemplateError: the one that is named does not exist or does not fit the model.
    """
    chat = (
        detect_chat_format(tokenizer.special_tokens, chat_template=tokenizer.chat_template)
        if chat_format is None
        else find_chat_format(chat_format)
    )
    chosen = template_for_model(model) if template is None else find_template(template)
    default = PromptBuilder(tokenizer, chosen, chat, memo)
    others: list[PromptBuilder] = []
    for other in builtin_templates():
        try:
            others.append(PromptBuilder(tokenizer, other, chat, memo))
        except TemplateError as error:
            _LOG.info("template %s is not offered: %s", other.id, error)
    return PromptCatalogue(default, others)


def build_service(settings: Settings, environ: Mapping[str, str]) -> Application:
    """The service with the real model."""
    metrics = Metrics(request_limit_s=settings.request_timeout_s + settings.body_timeout_s)
    return build_application(settings, metrics, lambda: load_model(settings, environ, metrics), test=self_test)


def _publish(metrics: Metrics, model: LoadedModel, *, passed: bool) -> None:
    engine, info = model.engine, model.engine.info
    metrics.set_selftest(passed)
    metrics.watch_engine(lambda: engine.health().snapshot)
    metrics.watch_memo(model.memo.stats)
    metrics.set_build_info(
        version=package_version(),
        model=model.name,
        revision=info.revision,
        template=model.prompts.default.template.id,
        dtype=info.dtype,
        linear_dtype=info.linear_dtype,
        kv_dtype=info.kv_dtype,
        kernels=info.kernels,
    )
    _LOG.info(
        "model loaded",
        extra={
            "fields": {
                "model": model.name,
                "revision": info.revision,
                "dtype": info.dtype,
                "linear_dtype": info.linear_dtype,
                "kv_dtype": info.kv_dtype,
                "device": info.device,
                "kernels": info.kernels,
                "cuda_graphs": list(info.replayed_tokens),
                "templates": model.prompts.names,
                "max_prompt_tokens": info.max_row_tokens,
                "num_blocks": info.num_blocks,
                "warm_up_s": round(info.warm_up_s, 3),
                "self_test_passed": passed,
            }
        },
    )


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Any error as the client sees it; what is not in the table is logged with its trace."""
    record = record_of(request.scope)
    if not isinstance(error, HTTPException) and answer_for(error) is INTERNAL:
        _LOG.error("unexpected error", exc_info=error, extra={"fields": {"request_id": record.request_id}})
    failure = failure_of(error, request_id=record.request_id)
    record.outcome = failure.outcome
    record.error_code = failure.code
    wire = record.error_form(failure)
    return Response(
        msgspec.json.encode(wire.body),
        status_code=wire.status,
        media_type="application/json",
        headers=dict(failure.headers),
    )
