"""Queries of one driver that wait for each other where one id of Kafka's is for all of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from keyhole.clock import Clock


class Turns:
    """One thread at a time, as long as turns are passed on. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Set: whose turn it is. In the order in which they came.
        self._there: list[threading.Event] = []
        self._passed_on = 0

    @contextlib.contextmanager
    def mine(self, clock: Clock, patience_seconds: float) -> Iterator[None]:
        """Blocks until the others had theirs; the block under it is the caller's turn.

        Args:
            patience_seconds: Where no turn is passed on for so long (twice that, at the most) the caller begins beside
                whoever has one, as the queries of another process do.
        """
        mine = self._come()
        try:
            seen = -1
            while not mine.is_set() and seen != self._passed_on:
                seen = self._passed_on
                clock.wait(mine, patience_seconds)
            yield
        finally:
            self._go(mine)

    def _come(self) -> threading.Event:
        mine = threading.Event()
        with self._lock:
            self._there.append(mine)
            self._there[0].set()
        return mine

    def _go(self, mine: threading.Event) -> None:
        with self._lock:
            self._passed_on += mine.is_set()
            self._there.remove(mine)
            if self._there:
                self._there[0].set()


_OF_APPLICATION: dict[tuple[str, str], Turns] = {}


def turns_of(bootstrap_servers: str, application: str) -> Turns:
    """The turns that queries of this process take at an application's control topic."""
    # In one step, as queries begin at the same time.
    return _OF_APPLICATION.setdefault((bootstrap_servers, application), Turns())
