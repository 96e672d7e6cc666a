"""An event loop that is only a clock, which a test moves, and the timers by it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any


class _Timer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class ManualLoop(asyncio.AbstractEventLoop):
    """See the module's text. `skip` is what a process that stood still sees."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **_: Any) -> Any:  # type: ignore[override]
        timer = _Timer(lambda: callback(*args))
        # As real time, it has gone on by when anything is called.
        due = max(self.now + delay, math.nextafter(self.now, math.inf))
        heapq.heappush(self._timers, (due, next(self._numbers), timer))
        return timer

    def pass_by(self, seconds: float) -> None:
        """So much time passes, and each timer's callback is called when it is due."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            if timer.call is not None:
                timer.call()
        self.now = max(self.now, until)

    def skip(self, seconds: float) -> None:
        """So much time passes, and no callback is called."""
        self.now += seconds


@contextlib.contextmanager
def manual_loop() -> Iterator[ManualLoop]:
    """One that is this thread's running loop for as long as this is open."""
    loop = ManualLoop()
    asyncio._set_running_loop(loop)
    try:
        yield loop
    finally:
        asyncio._set_running_loop(None)
