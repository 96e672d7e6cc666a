"""Waiting for what is to come, in threads and on event loops.

Nothing that is waited for takes this long on a machine that has time. One that has none is not to fail a test: what may
not take longer than it says is compared with another time of the same run, or with a deadline that is much longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0


def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS, pause: float = 0.005) -> None:
    """Returns once it is true; a TimeoutError if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it never came true")
        time.sleep(pause)


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """The same on an event loop."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of any kind, not all of them have an event
            await asyncio.sleep(0.005)
