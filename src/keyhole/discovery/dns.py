"""All addresses of a DNS name, asked again and again."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection

from keyhole.addresses import joined
from keyhole.backoff import JITTER
from keyhole.discovery.following import Telling
from keyhole.discovery.parse import DnsName

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
# An answer may be cut short, or come from a server that has not heard yet: what one lacks may be in the next.
_GRACE_SECONDS = 15.0
# A name that is not there yet is usually there soon: a Service's, while its pods start.
_UNKNOWN_SECONDS = 1.0

Resolve = Callable[[str, int], Collection[str]]


def resolve(name: str, port: int) -> list[str]:
    """IPv4 and IPv6 addresses. Blocks for as long as the resolver does. Raises OSError."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


class DnsSource:
    """See following.Source. Failures keep what was known; what answers lack for the grace goes.

    Args:
        every_seconds: How often the name is asked for; the jitter takes up to a quarter off.
    """

    def __init__(
        self,
        name: DnsName,
        resolve: Resolve = resolve,
        every_seconds: float = _EVERY_SECONDS,
        grace_seconds: float = _GRACE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._resolve = resolve
        self._every = every_seconds
        self._grace = grace_seconds
        self._monotonic = monotonic
        self._last_seen: dict[str, float] = {}
        self._failing = False

    def follow(self, telling: Telling, closed: threading.Event) -> None:
        while not closed.is_set():
            if self.ask():
                telling.found(self._last_seen)
            every = self._every if self._last_seen else min(_UNKNOWN_SECONDS, self._every)
            closed.wait(every * JITTER.uniform(0.75, 1.0))

    def ask(self) -> bool:
        """Asks once; whether there was an answer."""
        try:
            answer = self._resolve(*self._name)
        except (OSError, UnicodeError) as error:  # the latter: a label longer than 63 bytes
            if not self._failing:
                _log.warning(
                    "the name can't be resolved; the last known servers stay",
                    extra={"name_asked": self._name.name, "known": len(self._last_seen), "why": str(error)},
                )
            self._failing = True
            return False
        if self._failing:
            _log.info("the name is resolved again", extra={"name_asked": self._name.name, "addresses": len(answer)})
        self._failing = False
        now = self._monotonic()
        self._last_seen |= {joined(host, self._name.port): now for host in answer}
        self._last_seen = {address: seen for address, seen in self._last_seen.items() if now - seen <= self._grace}
        return True

    def known(self) -> frozenset[str]:
        """As of the last answer."""
        return frozenset(self._last_seen)

    def interrupt(self) -> None:
        """A resolver can't be broken off; its thread ends when it answers."""
