"""Waiting for what another process does, for so long by a clock and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from keyhole.clock import Clock


async def comes_within(clock: Clock, seconds: float, coming: Awaitable[object]) -> bool:
    """Whether it comes in that time; then it is cancelled. Raises what it raises."""
    waited, late = asyncio.ensure_future(coming), asyncio.ensure_future(clock.pause(seconds))
    try:
        await asyncio.wait((waited, late), return_when=asyncio.FIRST_COMPLETED)
        if not waited.done():
            return False
        await waited
        return True
    finally:
        for of in (waited, late):
            of.cancel()
        await asyncio.gather(waited, late, return_exceptions=True)
