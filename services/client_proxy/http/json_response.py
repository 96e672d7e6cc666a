"""JSON as the answer to a request. Whoever does not say how long it may be kept says: not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from services.client_proxy.http.answers import encoded

NO_STORE = {"Cache-Control": "no-store"}


def json_response(body: dict[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    """The body as JSON, in UTF-8. `headers`: may say another Cache-Control than no-store."""
    return web.Response(body=encoded(body), content_type="application/json", headers={**NO_STORE, **(headers or {})})
