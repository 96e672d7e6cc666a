"""The OpenAPI document, and a page to try it, on the proxy's HTTP port. Neither says anything of a state."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import re

from aiohttp import web

from keyhole.metrics.families import version
from services.client_proxy.http.answers import encoded
from services.client_proxy.http.openapi import document


def add_openapi(app: web.Application) -> None:
    """Adds /openapi.json and /openapi. Everybody may have them, as the health's paths."""
    app.router.add_get("/openapi.json", _document)
    app.router.add_get("/openapi", _page)


async def _document(request: web.Request) -> web.Response:
    return web.Response(body=_encoded_document(), content_type="application/json")


async def _page(request: web.Request) -> web.Response:
    page, policy = _page_and_policy()
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return web.Response(text=page, content_type="text/html", headers=headers)


@functools.cache
def _encoded_document() -> bytes:
    return encoded(document(version()))


@functools.cache
def _page_and_policy() -> tuple[str, str]:
    """The page, and what a browser may load and run in it: its own script and style, and answers of this proxy."""
    page = importlib.resources.files(__package__).joinpath("openapi.html").read_text()
    script, style = (_hash_of(page, tag) for tag in ("script", "style"))
    rules = ("default-src 'none'", f"script-src '{script}'", f"style-src '{style}'", "connect-src 'self'")
    return page, "; ".join((*rules, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"))


def _hash_of(page: str, tag: str) -> str:
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
