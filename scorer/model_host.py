"""The model that is served: loaded in the background, tested, ready, drained, closed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine import Engine, EngineInfo
from scorer.calibration.calibration import Calibration
from scorer.errors import NotReady
from scorer.scoring.raw_texts import RawTexts
from scorer.templates.catalogue import PromptCatalogue
from scorer.tokens.text_tokens import TextMemo

_LOG = logging.getLogger(__name__)
_LOADING_RETRY_S = 2.0
_GONE_RETRY_S = 5.0

Phase: TypeAlias = Literal["loading", "ready", "self_test_failed", "failed", "draining", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A running engine, the templates for its model, and the memory of its tokenizer.

    Args:
        texts: For prompts without a template.
        calibration: Was fitted on this model; it holds for one of the templates.
    """

    engine: Engine
    prompts: PromptCatalogue
    texts: RawTexts
    memo: TextMemo
    name: str
    calibration: Calibration | None = None

    def calibration_for(self, template: str) -> Calibration | None:
        """The calibration of a template, if there is one."""
        return self.calibration if self.calibration and self.calibration.template == template else None

    def namespace_for(self, tenant: str | None, salt: str | None = None) -> str:
        """Root of the prefix tree for requests of this tenant with this salt."""
        return salted(namespace_of(self.engine.info, tenant), salt)


def namespace_of(info: EngineInfo, tenant: str | None = None) -> str:
    """Root of the prefix tree for a tenant's requests to this model. Nothing of a request's body enters it."""
    return info.revision if tenant is None else f"{info.revision}@{hashlib.sha256(tenant.encode()).hexdigest()}"


def salted(namespace: str, salt: str | None) -> str:
    """A root within ``namespace`` for requests with this salt, which no other salt leads to.

    The salt comes from the body, so it parts what one caller may see and never joins two.
    """
    return namespace if salt is None else f"{namespace}/{hashlib.sha256(salt.encode()).hexdigest()}"


class ModelHost:
    """Loads the model in a thread of its own, so that the service answers probes meanwhile.

    Belongs to the event loop; only :meth:`_load` runs elsewhere.

    Args:
        load: Builds the model; may take minutes.
        self_test: Why the model must not be trusted, or None. Runs after ``load``.
        require_self_test: Whether a model that failed it stays out of service.
        on_loaded: Told of the model and whether it passed, before it is ready.
        warm: Fills the cache of a model that is going to be served, after its test.
        expected: Errors of ``load`` and ``warm`` that explain themselves; any other is logged with its trace.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        self_test: Callable[[LoadedModel], str | None],
        *,
        require_self_test: bool,
        on_loaded: Callable[[LoadedModel, bool], None],
        warm: Callable[[LoadedModel], None] | None = None,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        self._load_model = load
        self._self_test = self_test
        self._require_self_test = require_self_test
        self._on_loaded = on_loaded
        self._warm = warm
        self._expected = expected
        self._on_failed: Callable[[], None] | None = None
        self._phase: Phase = "loading"
        self._reason = "the model is loading"
        self._model: LoadedModel | None = None
        self._has_failed = False
        self._loader: threading.Thread | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def has_failed(self) -> bool:
        """Whether there is no model and never will be one."""
        return self._has_failed

    @property
    def is_loading(self) -> bool:
        return self._loader is not None and self._loader.is_alive()

    @property
    def model(self) -> LoadedModel | None:
        return self._model

    def call_on_failure(self, function: Callable[[], None]) -> None:
        """Have ``function`` told, once, that there will be no model."""
        self._on_failed = function

    def start(self) -> None:
        """Begin to load; returns at once."""
        loop = asyncio.get_running_loop()
        # A daemon: a stop that comes while it loads does not wait for it.
        self._loader = threading.Thread(target=self._load, args=(loop,), name="load-model", daemon=True)
        self._loader.start()

    def readiness(self) -> str | None:
        """None if requests are served, otherwise the reason why not."""
        if self._phase != "ready":
            return self._reason
        assert self._model is not None, "only a loaded model is ready"
        health = self._model.engine.health()
        return None if health.accepting else f"the engine takes no work: {health.reason or 'stopped'}"

    def is_alive(self) -> bool:
        """False when nothing but a restart helps: no model, or an engine that died."""
        if self._phase == "failed":
            return False
        if self._phase == "closed" or self._model is None:
            return True
        return self._model.engine.health().alive

    def require(self) -> LoadedModel:
        """The model, for a request.

        Raises:
            NotReady: it cannot be used now; says why.
        """
        reason = self.readiness()
        if reason is not None:
            raise NotReady(reason, retry_after_s=_LOADING_RETRY_S if self._phase == "loading" else _GONE_RETRY_S)
        assert self._model is not None, "only a loaded model is ready"
        return self._model

    def begin_drain(self) -> None:
        """Refuse new requests; those under way go on."""
        self._enter("draining", "the service is shutting down")

    async def close(self, *, drain_s: float) -> None:
        """Close the engine, if there is one. A load under way is not waited for."""
        self.begin_drain()
        if self._model is not None:
            await asyncio.to_thread(self._model.engine.close, drain_s=drain_s)
        self._enter("closed", "the service has stopped")

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in a thread of its own."""
        try:
            model = self._load_model()
            fault = self._examined(model)
        except Exception as error:  # noqa: BLE001  whatever it is, the service has to say why it is not ready
            trace = None if isinstance(error, self._expected) else error
            _LOG.error("the model cannot be loaded: %s", error, exc_info=trace)
            _call(loop, self._failed, f"the model cannot be loaded: {error}")
        else:
            _call(loop, self._loaded, model, fault)

    def _examined(self, model: LoadedModel) -> str | None:
        """What the self-test says; the cache of a model that is served in spite of it is filled."""
        try:
            fault = self._self_test(model)
            if self._warm is not None and (fault is None or not self._require_self_test):
                self._warm(model)
        except Exception:
            model.engine.close(drain_s=0.0)
            raise
        return fault

    def _loaded(self, model: LoadedModel, fault: str | None) -> None:
        self._model = model
        self._on_loaded(model, fault is None)
        if fault is not None:
            _LOG.error("the self-test failed: %s", fault)
        if fault is not None and self._require_self_test:
            self._enter("self_test_failed", f"the self-test failed: {fault}")
        else:
            self._enter("ready", "")

    def _failed(self, reason: str) -> None:
        self._has_failed = True
        self._enter("failed", reason)
        if self._on_failed is not None:
            self._on_failed()

    def _enter(self, phase: Phase, reason: str) -> None:
        if self._phase in {"draining", "closed"} and phase != "closed":
            return  # a model that arrives late does not reopen the service
        self._phase, self._reason = phase, reason


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """Run ``function`` on the loop; a loop that has ended meanwhile needs no news."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        _LOG.info("the service stopped before the model was loaded")
