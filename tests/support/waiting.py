"""Waiting for what is to come, in threads and on event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_SECONDS = 20.0
"""Long for a busy machine, and shorter than what would make it true by itself: the limits of connections that don't get
anywhere (25 s and more), of scans (60 s), of watches (40 s), of processes that sleep."""

LONG_SECONDS = 120.0
"""For processes that start and clusters that follow: where only what is waited for can make it true."""

SOON_SECONDS = 10.0
"""In which what must not wait for a deadline is over, also on a busy machine."""


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_SECONDS,
    pause: float = 0.005,
    seen: Callable[[], object] | None = None,
) -> None:
    """Returns once it is true; a TimeoutError if it never is.

    Args:
        seen: What there is in its place, which the error then says: an output, or what was found last.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it never came true" if seen is None else f"it never came true; there is: {seen()}")
        time.sleep(pause)


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """The same on an event loop."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of any kind, not all of them have an event
            await asyncio.sleep(0.005)
