"""The body of a request, which must come in time."""

from __future__ import annotations

import asyncio

from aiohttp import web


async def body_of(request: web.Request, seconds: float) -> bytes:
    """All of it. Raises HTTPRequestTimeout: it has not come within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body did not come in time") from None
