"""Time, as something that is handed in: production code gets SystemClock, tests get keyhole.testing.clock.ManualClock.

The coordinator, savepoints and the services have no other: they read it, and sleep and wait by it. What the libraries
measure is not theirs. A call to Kafka has a deadline of the client's. A request under way, from its caller on to the
servers that it is sent to, has one on the event loop's clock, as gRPC and asyncio have it (loop.time, call_later,
asyncio.timeout and asyncio.wait). The end of a thread is waited for by Thread.join. A task that stages rows looks every
0.1 s whether its call has ended, while it waits for room in what is sent (Queue.put). What is kept in memory in case a
reader comes back goes by a timer of the event loop: no answer depends on when. The step of an owner whose key groups
are begun lets its pool read for a second, and then has its turn without it.

tests/meta/test_clock.py has these by file, and refuses all else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks, one to date things by and one to measure with; and ways to wait by the latter.

    Any thread.
    """

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back."""

    def sleep(self, seconds: float) -> None:
        """Returns that much later. Blocks: not on an event loop. At 0 and below: at once."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Returns once the event is set, or that much later. Blocks: not on an event loop.

        Returns:
            Whether it is set.
        """

    async def pause(self, seconds: float) -> None:
        """As `sleep`, for a coroutine: others have their turn meanwhile."""


class SystemClock:
    """The machine's clocks: `now_ms` is set by its administrator or NTP, `monotonic` never goes back."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
