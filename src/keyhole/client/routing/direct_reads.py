"""Sends the lookups of a state to its servers, those that a client reaches; says which are left for the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from keyhole.client.routing.direct_servers import DirectServers
from keyhole.client.routing.frame import Forwarding
from keyhole.client.routing.routes import FirstCopies, LaneRoutes
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.errors import (
    DeadlineExceeded,
    InternalError,
    KeyholeError,
    Overloaded,
    PermissionDenied,
    ProtocolMismatch,
    Unauthenticated,
)
from keyhole.rpc.frames import AskAgain, Failure

# More than any answer has: what is gathered here is not sent on.
_ROOM = 1 << 62
# What the proxy can't mend either: no time is left, or it would only add to the load.
_FINAL = (Overloaded, DeadlineExceeded)
# Of a server that does not know this caller, or can't read this state: for the state it is left alone for a while.
_REFUSALS = (InternalError, PermissionDenied, ProtocolMismatch, Unauthenticated)
_REFUSED_SECONDS = 30.0


class DirectReads:
    """Those of one state. Used from the event loop's thread only."""

    def __init__(self, servers: DirectServers, name: tuple[str, str]) -> None:
        self._servers = servers
        self._name = name
        self._loop = asyncio.get_running_loop()
        # By address: until when it is left alone, on the event loop's clock.
        self._refused: dict[str, float] = {}

    def split(self, lane: Lane, keys: Sequence[bytes]) -> tuple[dict[str, Sequence[int]], Sequence[int]]:
        """The places of the keys by the server that is to be asked, and of those that are left for the proxy.

        Each goes where the proxy would send it first. Where that server can't be asked from here, the key is the
        proxy's: another copy would answer, and might be older.
        """
        self._servers.follow(self._name)
        if self._name not in self._servers.tables:
            return {}, range(len(keys))
        first = LaneRoutes(self._servers, lane).first(keys)
        by_server: dict[str, Sequence[int]] = {}
        left: list[int] = []
        for address, places in first.by_server.items():
            which = range(len(keys)) if places is None else places
            if self._servers.link(address) is None or self._refused.get(address, 0.0) > self._loop.time():
                left += which
            else:
                by_server[address] = which
        for _, which in first.nowhere:
            left += which
        return by_server, left

    def send(
        self, address: str, lane: Lane, keys: Sequence[bytes], deadline: float, done: Callable[[Answers], None]
    ) -> None:
        """Asks a server, and other copies where it fails or is silent.

        Args:
            deadline: On the event loop's clock.
            done: Gets the answers. Keys that the proxy is to be asked for stand as AskAgain. May be called from within.
        """

        def ended(answers: Answers) -> None:
            if not answers.failures:
                if (server := self._servers.link(address)) is not None:
                    server.answered()
                done(answers)
                return
            failures = {place: _judged(failure) for place, failure in answers.failures.items()}
            done(answers._replace(failures=failures, message=None))

        forwarding = Forwarding(
            self._servers, lane, keys, deadline, ended, in_parts=True, room=_ROOM, refused=self._note
        )
        forwarding.start(FirstCopies({address: None}))

    def _note(self, address: str, error: KeyholeError) -> None:
        if isinstance(error, _REFUSALS):
            now = self._loop.time()
            self._refused = {of: until for of, until in self._refused.items() if until > now}
            self._refused[address] = now + _REFUSED_SECONDS


def _judged(failure: Failure) -> Failure:
    if isinstance(failure, (AskAgain, *_FINAL)):
        return failure
    # The proxy has the last word, so that its refusals are the callers'.
    return AskAgain(failure.message)
