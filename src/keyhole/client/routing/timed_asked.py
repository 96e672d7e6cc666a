"""One server's share of a frame where lookups are hedged: how long it takes is learned, and told once it is long."""

from __future__ import annotations

import asyncio

from keyhole.client.routing.asked import Asked
from keyhole.client.routing.known_servers import KnownServers
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers


class TimedAsked(Asked):
    """As Asked, of servers that are hedged. A hedge goes to no third server: the other one is not silent."""

    __slots__ = ("_hedging", "_sent", "_slow")

    def send(self, servers: KnownServers, lane: Lane, loop: asyncio.AbstractEventLoop) -> bool:
        assert servers.hedging is not None
        self._hedging = servers.hedging
        self._sent = loop.time()
        self._slow: asyncio.TimerHandle | None = None
        if not super().send(servers, lane, loop):
            return False
        patience = self._hedging.patience(self.address)
        if not self.is_hedge and patience < servers.hop_seconds:
            self._slow = loop.call_later(patience, self._is_slow, patience, patience / 2)
        return True

    def forget(self) -> None:
        super().forget()
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def answered(self, start: int, answers: Answers) -> None:
        if len(answers.values) == self._left and not self.overdue:
            self._hedging.took(self.address, self._loop.time() - self._sent)
        super().answered(start, answers)

    def _is_overdue(self, hop_seconds: float, grace_seconds: float) -> None:
        super()._is_overdue(hop_seconds, grace_seconds)
        if self.overdue:
            self._hedging.took(self.address, hop_seconds)

    def _is_slow(self, seconds: float, grace_seconds: float) -> None:
        self._slow = self._again(self._is_slow, seconds, grace_seconds)
        if self._slow is None:
            self._sink.slow(self)
