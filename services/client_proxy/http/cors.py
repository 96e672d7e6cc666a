"""Which web pages of other origins may read what the proxy answers over HTTP (CORS, the Fetch standard)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from keyhole.errors import InvalidConfiguration

VARIABLE = "KEYHOLE_CLIENT_PROXY_HTTP_ORIGINS"

_HOST = re.compile(r"[a-z0-9._:-]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# What a request may bring that a form couldn't send, and what a page may read of an answer beside its body.
_REQUEST_HEADERS = "Authorization, Content-Type, If-None-Match, Last-Event-ID"
_ANSWER_HEADERS = "ETag, Retry-After, WWW-Authenticate"
# How long a browser need not ask again whether it may; an origin that is taken out is refused after that at the latest.
_PREFLIGHT_SECONDS = 600

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def checked_origins(origins: Iterable[str]) -> frozenset[str]:
    """The origins as browsers spell them in the header `Origin`.

    Raises:
        InvalidConfiguration: One that is none, or that means everybody (`*`, `null`).
    """
    return frozenset(_checked(origin) for origin in origins)


def allowing(origins: frozenset[str]) -> Any:
    """A middleware by which pages of these origins may read the answers. All other requests are answered without it.

    No cookies are meant: a page brings a bearer token, in the header `Authorization`.

    Args:
        origins: As `checked_origins` returns them. Empty: no answer has a header of CORS.
    """

    @web.middleware
    async def cors(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not origins:
            return await handler(request)
        origin = request.headers.get("Origin", "")
        allowed = origin in origins
        response = (_preflight(request) if allowed else None) or await handler(request)
        # Also where it is not allowed: a cache must not give one origin what it was answered for another.
        also = response.headers.get("Vary")
        response.headers["Vary"] = f"{also}, Origin" if also else "Origin"
        if allowed:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _ANSWER_HEADERS
        return response

    return cors


def _preflight(request: web.Request) -> web.Response | None:
    """The answer to a browser that asks whether it may send a request; None: it is no such question, or it may not."""
    wanted = request.headers.get("Access-Control-Request-Method")
    refused = request.match_info.http_exception
    if request.method != "OPTIONS" or not isinstance(refused, web.HTTPMethodNotAllowed):
        return None
    if wanted not in refused.allowed_methods:
        return None
    headers = {
        "Access-Control-Allow-Methods": ", ".join(sorted(refused.allowed_methods)),
        "Access-Control-Allow-Headers": _REQUEST_HEADERS,
        "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
    }
    return web.Response(status=204, headers=headers)


def _checked(origin: str) -> str:
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # a port that is no number, a bracket without its other one
        raise _no_origin(origin) from None
    named = f"[{host}]" if ":" in host else host
    shown = "" if port is None else f":{port}"
    # No user, no path, no query: nothing is left of it but these.
    if not _HOST.fullmatch(host) or origin.lower() != f"{parts.scheme}://{named}{shown}":
        raise _no_origin(origin)
    return f"{parts.scheme}://{named}{'' if port == _DEFAULT_PORTS.get(parts.scheme) else shown}"


def _no_origin(origin: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{VARIABLE} has {origin!r}; each must be one origin, as https://app.example.com or http://localhost:3000: "
        "no path, no / at the end, no *, names in ASCII (xn--...)",
        variable=VARIABLE,
    )
