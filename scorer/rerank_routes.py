"""The rerank route."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from scorer.rerank_dialect import rerank_dialect
from scorer.routes import ScoringGate


def rerank_route(gate: ScoringGate) -> HTTPRouteHandler:
    """``POST /v1/rerank``."""
    dialect = rerank_dialect()

    @post("/v1/rerank", status_code=200)
    async def rerank(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await gate.answer(request, dialect)

    return rerank
