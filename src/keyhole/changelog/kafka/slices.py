"""One thread polls a consumer, another closes it: in slices, between which whoever closes has its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from keyhole.changelog.kafka.clients import Deadline

# How long a closing thread may have to wait for the one that polls.
_SLICE_SECONDS = 0.1

_Found = TypeVar("_Found")


class Slices:
    """The turns of a consumer's threads. Thread-safe.

    Attributes:
        lock: Held by whoever uses the consumer.
        closed: It is not to be used any more.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.closed = False

    def poll(self, take: Callable[[float], _Found], nothing: _Found, seconds: float) -> _Found:
        """What `take` finds, which is called again and again until the time is up. `nothing`, once it is closed.

        Args:
            take: Waits for the seconds that it is given, at most. Called with the lock held.
        """
        deadline = Deadline(seconds)
        while not self.closed:
            with self.lock:
                found = nothing if self.closed else take(min(_SLICE_SECONDS, deadline.left))
            if found or deadline.passed:
                return found
        return nothing

    @contextmanager
    def closing(self) -> Iterator[None]:
        """With the lock held; nobody polls from here on."""
        self.closed = True
        with self.lock:
            yield
