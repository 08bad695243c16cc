"""The native route, and how every scoring route reads its request and writes its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from scorer.admission import Admission, BodyBuffer
from scorer.body_encoding import encoding_of, inflate
from scorer.disconnect import while_connected
from scorer.json_body import read_body, require_json
from scorer.native_dialect import native_dialect
from scorer.request_record import record_of
from scorer.service import ScoringService, Speech


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringGate:
    """What a scoring handler needs: the service and the limits of its body."""

    service: ScoringService
    admission: Admission
    max_body_bytes: int
    body_timeout_s: float

    async def answer(self, request: Request[Any, Any, Any], speech: Speech) -> Response[bytes]:
        """Read the body, score, answer.

        Raises:
            Refusal, EngineError: see :mod:`scorer.errors`.
        """
        record = record_of(request.scope)
        record.scoring = True
        record.error_form = speech.error_form
        require_json(request.headers)
        with self.admission.buffer() as buffer:
            body = await self.read(request, buffer)
            reply = await while_connected(self.service.score(body, speech, record), request.receive)
        return Response(reply.body, media_type="application/json", headers=dict(reply.headers))

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


def score_route(gate: ScoringGate) -> HTTPRouteHandler:
    """``POST /v1/batches/score``."""
    dialect = native_dialect()

    @post("/v1/batches/score", status_code=200)
    async def score_batch(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await gate.answer(request, dialect)

    return score_batch
