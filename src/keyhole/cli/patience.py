"""Says what a command waits for, once that takes longer than a person expects. On standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console

from keyhole import Client
from keyhole.clock import Clock, SystemClock
from keyhole.demo.progress_line import ProgressLine
from keyhole.errors import KeyholeError

_QUIET_SECONDS = 2.0
_SHOW_SECONDS = 0.5
_LOOK_SECONDS = 0.5

_T = TypeVar("_T")


@contextmanager
def beside(show: Callable[[threading.Event], None]) -> Iterator[None]:
    """While it is entered `show` runs in a thread of its own, and returns once the event that it is given is set."""
    over = threading.Event()
    shows = threading.Thread(target=show, args=(over,), name="keyhole-progress", daemon=True)
    shows.start()
    try:
        yield
    finally:
        over.set()
        shows.join()


@contextmanager
def patience(what: str) -> Iterator[None]:
    """While it is entered, for longer than 2 s, a line says for what and how long. Nothing else may be printed then.

    In a terminal the line goes away at the end; elsewhere there is one every 15 s.
    """
    began = time.monotonic()

    def show(over: threading.Event) -> None:
        if over.wait(_QUIET_SECONDS):
            return
        with ProgressLine(Console(stderr=True, highlight=False)) as line:
            while not over.wait(_SHOW_SECONDS):
                line.show(what, time.monotonic() - began)

    with beside(show):
        yield


def look_until(
    over: Callable[[_T], bool],
    look: Callable[[], _T],
    now: _T,
    seconds: float,
    what: str,
    *,
    may_fail: bool = False,
    clock: Clock | None = None,
) -> _T:
    """Looks every half second until what it sees is over, or the time is. Returns what it saw last.

    Args:
        now: What was seen before.
        what: Is waited for, as `patience` says it.
        may_fail: A look that fails is made again, while there is time.

    Raises:
        KeyholeError: As `look`.
    """
    clock = clock or SystemClock()
    until = clock.monotonic() + seconds
    with patience(what):
        while not over(now) and clock.monotonic() < until:
            clock.sleep(_LOOK_SECONDS)
            try:
                now = look()
            except KeyholeError:
                if not may_fail or clock.monotonic() >= until:
                    raise
    return now


class PatientClient(Client):
    """A Client whose calls say what they wait for."""

    def _run(self, start: Callable[[], Awaitable[_T]]) -> _T:
        with patience(f"waiting for {self._target}"):
            return super()._run(start)
