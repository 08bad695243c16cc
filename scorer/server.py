"""Runs the application until it is told to stop, and stops in order.

On SIGTERM or SIGINT: not ready, new requests refused, those under way answered, connections
closed, engine closed, exit code 0. What is not done in time, or by a second signal, is
answered 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from scorer.http.admission import Admission
from scorer.http.protocol import bounded_protocol
from scorer.model_host import ModelHost
from scorer.settings import Settings

_LOG = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.05
_KEEP_ALIVE_S = 30
_LAST_WORDS_S = 5
"""Time to send what is answered and to close connections, after the drain."""


class Server(uvicorn.Server):
    """A uvicorn server that drains before it closes its sockets.

    The stock one closes them at once and ends by raising the signal again, so that a load
    balancer sees refused connections and the process an exit code of 143.
    """

    def __init__(
        self, config: uvicorn.Config, host: ModelHost, admission: Admission, *, drain_timeout_s: float
    ) -> None:
        super().__init__(config)
        self._host = host
        self._admission = admission
        self._drain_timeout_s = drain_timeout_s
        self._draining: asyncio.Task[None] | None = None
        self._in_a_hurry = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _stop(self, number: signal.Signals) -> None:
        if self._draining is None:
            _LOG.info("%s: draining %d requests", signal.Signals(number).name, self._admission.num_requests)
            self._host.begin_drain()
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            _LOG.warning("%s again: requests under way are given up", signal.Signals(number).name)
            self._in_a_hurry = True

    async def _drain(self) -> None:
        give_up_at = time.monotonic() + self._drain_timeout_s
        while self._admission.num_requests and time.monotonic() < give_up_at and not self._in_a_hurry:
            await asyncio.sleep(_LOOK_S)
        if self._admission.num_requests:
            await self._host.close(drain_s=0.0)  # their tasks end, so that they are answered
        self.should_exit = True


def serve(app: Any, settings: Settings, host: ModelHost, admission: Admission) -> int:
    """Serve until a signal, or until the model turns out not to load.

    Returns:
        The exit code: 0 after a signal, 1 without a model or an address. Ends the process
        itself if the model is still loading.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=bounded_protocol(header_timeout_s=settings.header_timeout_s, linger_s=settings.body_timeout_s),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nobody asks for the address of a client
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    server = Server(config, host, admission, drain_timeout_s=settings.drain_timeout_s)

    def give_up() -> None:
        server.should_exit = True

    host.call_on_failure(give_up)
    try:
        server.run()
    except SystemExit as stop:  # the address cannot be had; it has been logged
        code = 1 if stop.code else 0
    else:
        code = 1 if host.has_failed else 0
    if host.is_loading:
        # The loader is somewhere in native code, which must not meet the interpreter's teardown.
        logging.shutdown()
        os._exit(code)
    return code
