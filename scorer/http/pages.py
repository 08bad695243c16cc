"""The OpenAPI document and a page that shows it; needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from scorer.openapi import encoded_document

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def page_routes() -> Sequence[HTTPRouteHandler]:
    document = encoded_document()
    page = (resources.files("scorer.http") / "docs_page.html").read_bytes()

    @get("/openapi.json")
    async def openapi() -> Response[bytes]:
        return Response(document, media_type="application/json")

    @get("/docs")
    async def docs() -> Response[bytes]:
        headers = {"content-security-policy": _POLICY, "content-type": "text/html; charset=utf-8"}
        return Response(page, headers=headers)

    return openapi, docs
