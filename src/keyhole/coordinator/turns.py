"""Queries of one driver that wait for each other where one id of Kafka's is for all of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """One thread at a time, as long as turns are passed on. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed_on = 0

    @contextlib.contextmanager
    def mine(self, patience_seconds: float) -> Iterator[None]:
        """Blocks until the others had theirs; the block under it is the caller's turn.

        Args:
            patience_seconds: Where no turn is passed on for so long (twice that, at the most) the caller begins beside
                whoever has one, as the queries of another process do.
        """
        seen, mine = -1, False
        while not mine and seen != self._passed_on:
            seen = self._passed_on
            mine = self._lock.acquire(timeout=patience_seconds)
        try:
            yield
        finally:
            if mine:
                self._passed_on += 1
                self._lock.release()


_OF_APPLICATION: dict[tuple[str, str], Turns] = {}


def turns_of(bootstrap_servers: str, application: str) -> Turns:
    """Those of this process for an application's control topic."""
    # In one step, as queries begin at the same time.
    return _OF_APPLICATION.setdefault((bootstrap_servers, application), Turns())
