"""The native route, and how every scoring route reads its request and writes its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from litestar import HttpMethod, Request, Response, post, route
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from scorer.dialects.dialect import Speech
from scorer.dialects.error_forms import ErrorForm, native_error
from scorer.dialects.native import native_dialect, native_lines_dialect
from scorer.dialects.score_stream import stream_lines
from scorer.http.admission import Admission, BodyBuffer
from scorer.http.body_encoding import encoding_of, inflate
from scorer.http.callers import Callers
from scorer.http.disconnect import while_connected
from scorer.http.edge import ERROR_FORM
from scorer.http.json_body import NDJSON, is_ndjson, read_body, require_json
from scorer.http.request_record import RequestRecord, record_of
from scorer.service import ScoringService


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringGate:
    """What a scoring handler needs: the service, who may call it, and the limits of its body."""

    callers: Callers
    service: ScoringService
    admission: Admission
    max_body_bytes: int
    body_timeout_s: float

    async def answer(self, request: Request[Any, Any, Any], speech: Speech, *, lines: bool = False) -> Response[bytes]:
        """Read the body, score, answer.

        Args:
            lines: The body may also be lines of JSON.

        Raises:
            Refusal, EngineError: see :mod:`scorer.errors`.
        """
        record = self.opened(request, speech.error_form, lines=lines)
        with self.admission.buffer() as buffer:
            body = await self.read(request, buffer)
            reply = await while_connected(self.service.score(body, speech, record), request.receive)
        return Response(reply.body, media_type="application/json", headers=dict(reply.headers))

    async def stream(self, request: Request[Any, Any, Any], speech: Speech) -> Stream:
        """Read the body, which may be lines of JSON, score, answer in lines from the first result on.

        Raises:
            Refusal, EngineError: the error came before the first result.
        """
        record = self.opened(request, speech.error_form, lines=True)
        with self.admission.buffer() as buffer:
            body = await self.read(request, buffer)
            lines = stream_lines(self.service, body, speech, record)
            first = await while_connected(anext(lines), request.receive)
        return Stream(_chained(first, lines), media_type=NDJSON)

    def opened(
        self, request: Request[Any, Any, Any], error_form: ErrorForm = native_error, *, lines: bool = False
    ) -> RequestRecord:
        """The record of a request for scores or text, once it is known who is calling.

        Raises:
            Unauthenticated: that is not known, and has to be.
            UnsupportedMedia: the body is not announced as JSON.
        """
        record = record_of(request.scope)
        record.scoring = True
        record.error_form = error_form
        record.tenant = self.callers.tenant_of(request.headers)
        require_json(request.headers, lines=lines)
        return record

    async def read(self, request: Request[Any, Any, Any], buffer: BodyBuffer) -> bytes:
        """The whole body, inflated; ``buffer`` holds as many bytes as it has.

        Raises:
            Refusal: see :mod:`scorer.errors`.
        """
        limit = self.max_body_bytes
        encoding = encoding_of(request.headers)
        body = await read_body(request.receive, request.headers, buffer, limit=limit, timeout_s=self.body_timeout_s)
        if encoding == "identity":
            return body
        body = await asyncio.to_thread(inflate, body, encoding, limit=limit)
        buffer.release()
        buffer.append(body)
        return body


async def _chained(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


def scoring_route(gate: ScoringGate, path: str, speech: Speech, *, put: Speech | None = None) -> HTTPRouteHandler:
    """A route that is answered at once.

    Args:
        speech, put: What is spoken by ``POST``, and by ``PUT`` where that is served.
    """
    spoken = {HttpMethod.POST: speech} | ({} if put is None else {HttpMethod.PUT: put})

    # one handler for both methods: of several, the framework tells those of one only when it is asked by OPTIONS
    @route(path, http_method=list(spoken), status_code=200, opt={ERROR_FORM: speech.error_form})
    async def score(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await gate.answer(request, spoken[HttpMethod(request.method)])

    return score


def score_route(gate: ScoringGate) -> HTTPRouteHandler:
    """``POST /v1/batches/score``: an object or lines in, an object or lines out."""
    batch, lines = native_dialect(), native_lines_dialect()

    @post("/v1/batches/score", status_code=200)
    async def score_batch(request: Request[Any, Any, Any]) -> Response[Any]:
        dialect = lines if is_ndjson(request.headers) else batch
        if NDJSON in request.headers.get("accept", "").lower():
            return await gate.stream(request, dialect)
        return await gate.answer(request, dialect, lines=True)

    return score_batch
