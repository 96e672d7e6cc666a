"""A set of addresses that threads keep up to date, for readers of both worlds: asyncio and threads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol

from keyhole.errors import KeyholeError

_log = logging.getLogger(__name__)


class Telling(Protocol):
    """What a source says; from its own thread."""

    def found(self, addresses: Collection[str]) -> None:
        """All that it knows of, as of now."""

    def refused(self, error: KeyholeError) -> None:
        """The source was refused an answer. It goes on asking."""


class AddressSource(Protocol):
    """One place where addresses come from."""

    def follow(self, telling: Telling, closed: threading.Event) -> None:
        """Reports the addresses at once and after every change, in a thread of its own, until `closed` is set. Raises
        nothing.
        """

    def interrupt(self) -> None:
        """`closed` was just set: what `follow` waits for outside is broken off. Any thread."""


class FollowedServers:
    """The union of fixed addresses and of what the sources find. Thread-safe; its threads start with its first use.

    Args:
        fixed: host:port of servers that are always there.
        described: How the setting spells it, for messages.
    """

    def __init__(self, fixed: Collection[str], sources: Sequence[AddressSource], described: str) -> None:
        self.described = described
        self._fixed = frozenset(fixed)
        self._sources = tuple(sources)
        self._changed = threading.Condition()
        self._told: dict[int, frozenset[str]] = {}
        self._refusals: dict[int, KeyholeError] = {}
        self._listeners: set[Callable[[], None]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    def known(self) -> frozenset[str]:
        """All that is known now; empty where nothing was found yet. Does not wait.

        Raises:
            InvalidConfiguration: A source was refused an answer, and never had one.
        """
        self._start()
        with self._changed:
            return self._now() or frozenset()

    def wait(self, seconds: float) -> frozenset[str]:
        """As `known`, once every source has found something; what is known by then, if that takes longer."""
        self._start()
        until = time.monotonic() + seconds
        with self._changed:
            while len(self._told) < len(self._sources) and (left := until - time.monotonic()) > 0:
                self._now()
                self._changed.wait(left)
            return self._now() or frozenset()

    async def addresses(self) -> AsyncIterator[frozenset[str]]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._listeners.add(wake)
        try:
            self._start()
            last: frozenset[str] | None = None
            while True:
                woken.clear()
                with self._changed:
                    now = self._now()
                if now is not None and now != last:
                    last = now
                    yield now
                await woken.wait()
        finally:
            with self._changed:
                self._listeners.discard(wake)

    def close(self) -> None:
        """Ends its threads, without waiting for them. Idempotent."""
        self._closed.set()
        for source in self._sources:
            source.interrupt()
        with self._changed:
            self._changed.notify_all()

    def _start(self) -> None:
        with self._changed:
            if self._threads or self._closed.is_set():
                return
            self._threads = [
                threading.Thread(
                    target=source.follow,
                    args=(_TellingOfSource(self._tell, self._refuse, number), self._closed),
                    name=f"keyhole-discovery-{number}",
                    daemon=True,
                )
                for number, source in enumerate(self._sources)
            ]
            for thread in self._threads:
                thread.start()

    def _now(self) -> frozenset[str] | None:
        """None: nothing is known yet. Called with the lock."""
        for error in self._refusals.values():
            raise error
        if not (self._told or self._fixed):
            return None
        return self._fixed.union(*self._told.values())

    def _tell(self, number: int, addresses: frozenset[str]) -> None:
        with self._changed:
            if self._told.get(number) == addresses:
                return
            before = self._told.get(number, frozenset())
            self._told[number] = addresses
            self._refusals.pop(number, None)
            listeners = tuple(self._listeners)
            self._changed.notify_all()
        _log.info(
            "discovered servers changed",
            extra={
                "come": sorted(addresses - before),
                "gone": sorted(before - addresses),
                "servers": len(addresses),
            },
        )
        for wake in listeners:
            wake()

    def _refuse(self, number: int, error: KeyholeError) -> None:
        with self._changed:
            if number in self._told:
                return  # What is known goes on being used.
            self._refusals[number] = error
            listeners = tuple(self._listeners)
            self._changed.notify_all()
        for wake in listeners:
            wake()


class _TellingOfSource:
    """What one source is given."""

    def __init__(
        self,
        tell: Callable[[int, frozenset[str]], None],
        refuse: Callable[[int, KeyholeError], None],
        number: int,
    ) -> None:
        self._tell = tell
        self._refuse = refuse
        self._number = number

    def found(self, addresses: Collection[str]) -> None:
        self._tell(self._number, frozenset(addresses))

    def refused(self, error: KeyholeError) -> None:
        self._refuse(self._number, error)
