"""``POST /v1/generate``: the answer is JSON, or events as text comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, Final

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from scorer.dialects.reply_headers import token_headers
from scorer.dialects.routes import ScoringGate
from scorer.generation.schema import GenerateText
from scorer.generation.service import Generation, GenerationService
from scorer.http.disconnect import while_connected
from scorer.http.event_stream import EventStream

UNCOMPRESSED: Final = "uncompressed"
"""Option of a handler whose answers are never compressed: events would wait in the compressor."""


def generate_route(gate: ScoringGate, service: GenerationService) -> HTTPRouteHandler:
    """``POST /v1/generate``."""

    @post("/v1/generate", status_code=200, opt={UNCOMPRESSED: True})
    async def generate(request: Request[Any, Any, Any]) -> Response[bytes]:
        record = gate.opened(request)
        with ExitStack() as held:
            with gate.admission.buffer() as buffer:
                body = await gate.read(request, buffer)
                held.enter_context(gate.admission.request())
                read = await while_connected(service.read(body, record), request.receive)
            generation = held.enter_context(service.running(read, record))
            if not read.plan.request.stream:
                answer = await while_connected(generation.whole(), request.receive)
                usage = answer.usage
                return Response(
                    msgspec.json.encode(answer),
                    media_type="application/json",
                    headers=token_headers(usage.prompt_tokens_details.cached_tokens, usage.computed_tokens),
                )
            await while_connected(generation.begun(), request.receive)
            return EventStream(_events(generation), record, held.pop_all())

    return generate


async def _events(generation: Generation) -> AsyncIterator[tuple[str, msgspec.Struct]]:
    async for part in generation.parts():
        yield ("text" if isinstance(part, GenerateText) else "usage"), part
