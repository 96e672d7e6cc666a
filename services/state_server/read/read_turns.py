"""Turns of those who look at many entries: one of all of them in each pass of the event loop.

Without it a lookup would wait for as many turns as there are scans and watches under way: 64 of some milliseconds.
"""

from __future__ import annotations

import asyncio


class ReadTurns:
    """See the module's text. Of one server; event loop."""

    def __init__(self) -> None:
        self._queue = asyncio.Lock()

    async def next(self) -> None:
        """Returns when others have had their turn, in the order of the calls, and all else that waits has run."""
        async with self._queue:
            await asyncio.sleep(0)
