"""One round of questions at a time, whose answers all share who ask for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from keyhole.clock import Clock

FRESH_SECONDS = 1.0
"""For so long nobody asks again: servers are asked at most so often."""
_PATIENCE_SECONDS = 0.5

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


class SharedRounds(Generic[Name, Result]):
    """Asks once however many consoles are open, and not at all while nobody asks here. Event loop's thread only.

    Args:
        ask: Has a round made of what has this name, and returns what was answered in it.
        old_seconds: Where a round takes longer than half a second, what the one before brought is given, if it is no
            older than this. 0: who asks waits for the round.
    """

    def __init__(self, clock: Clock, ask: Callable[[Name], Awaitable[Result]], old_seconds: float = 0.0) -> None:
        self._clock = clock
        self._ask = ask
        self._old_seconds = old_seconds
        self._last: dict[Name, tuple[float, Result]] = {}
        self._rounds: dict[Name, asyncio.Task[Result]] = {}

    async def of(self, name: Name) -> Result:
        """The newest answers: as of FRESH_SECONDS ago at most, where the round ends in time. Raises as `ask`."""
        now = self._clock.monotonic()
        kept_seconds = max(FRESH_SECONDS, self._old_seconds)
        self._last = {of: kept for of, kept in self._last.items() if now - kept[0] < kept_seconds}
        before = self._last.get(name)
        if before is not None and now - before[0] < FRESH_SECONDS:
            return before[1]
        if name not in self._rounds:
            self._rounds[name] = asyncio.get_running_loop().create_task(self._round(name))
        begun = self._rounds[name]
        if before is not None:
            await asyncio.wait((begun,), timeout=_PATIENCE_SECONDS)
            return self._last.get(name, before)[1]
        # Shielded, as what is waited for above: whoever goes away must not end it for the others.
        return await asyncio.shield(begun)

    async def close(self) -> None:
        """Ends what is under way."""
        rounds = list(self._rounds.values())
        for task in rounds:
            task.cancel()
        if rounds:
            await asyncio.wait(rounds)

    async def _round(self, name: Name) -> Result:
        try:
            answer = await self._ask(name)
            self._last[name] = self._clock.monotonic(), answer
            return answer
        finally:
            del self._rounds[name]
