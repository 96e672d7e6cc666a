"""A clock that stands still until a test moves it, or somebody waits by it."""

from __future__ import annotations

import asyncio
import threading

# How often a thread that waits looks at the clock: of the machine's time, on which nothing else depends.
_LOOK_SECONDS = 0.02


class ManualClock:
    """See keyhole.clock.Clock.

    Whoever sleeps moves it, and goes on at once; so does the thread that made it where it waits for an event. A thread
    that goes on in the background must not move it: there, a wait ends with the event, or once others have moved the
    clock so far. So what happens depends on who waits for what, and not on how fast the machine is.

    Any thread.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0
        self._lock = threading.Lock()
        self._maker = threading.get_ident()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        until = self._monotonic + seconds
        if threading.get_ident() != self._maker:
            while self._monotonic < until and not event.wait(_LOOK_SECONDS):
                pass
        elif not event.is_set():
            self.sleep(seconds)
        return event.is_set()

    async def pause(self, seconds: float) -> None:
        self.sleep(seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward by so many seconds. What waits until then goes on. Any thread."""
        with self._lock:
            self._monotonic += seconds
            self._now_ms += round(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, in either direction."""
        with self._lock:
            self._now_ms += round(seconds * 1000)
