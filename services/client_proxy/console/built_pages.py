"""The pages themselves, as they were built of web/: read once, and served with what keeps others out of them."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

STATIC = Path(__file__).parent / "static"
_START = "index.html"

HEADERS: Mapping[str, str] = {
    # No script, style or picture but those of these pages; no page of others around them.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Of each answer of the console."""


class _BuiltFile(NamedTuple):
    body: bytes
    content_type: str
    charset: str | None
    etag: str


class BuiltPages:
    """All files of a folder, by their path below it. A path is looked up, and never opened: there is no way out."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _built(path) for path in sorted(folder.rglob("*")) if path.is_file()
        }

    def answer(self, request: web.Request, name: str) -> web.Response:
        """The file of this name, or that the browser has it already; the start page for an empty name.

        Raises:
            HTTPNotFound: There is none.
        """
        found = self._files.get(name or _START)
        if found is None:
            raise web.HTTPNotFound
        # Asked for again each time, and sent only where it is another one: an upgrade is seen at once.
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": f'"{found.etag}"'}
        if any(tag.value in (found.etag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, content_type=found.content_type, charset=found.charset, headers=headers)


def _built(path: Path) -> _BuiltFile:
    body = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_text = kind.startswith("text/") or kind in ("application/json", "image/svg+xml")
    return _BuiltFile(body, kind, "utf-8" if is_text else None, hashlib.sha256(body).hexdigest()[:32])
