"""Asks every process for its figures, each by itself: one that is silent holds up no other, and no scrape."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

import grpc

from keyhole.backoff import JITTER
from keyhole.clock import Clock
from keyhole.discovery import Discovery
from keyhole.metrics.metric import Component
from keyhole.rpc import channels, status
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import stats_pb2 as pb
from keyhole.v1 import stats_pb2_grpc
from services.metrics_exporter.followed_discovery import FollowedDiscovery

_log = logging.getLogger(__name__)


class ScrapeTarget:
    """One process that is asked again and again, for as long as it is discovered. Event loop's thread only.

    Attributes:
        up: It answered when it was last asked.
        answer: The last one; None: none yet, or it is forgotten.
        asked: How often it was asked, whatever came of it.
    """

    def __init__(
        self,
        component: Component,
        address: str,
        clock: Clock,
        interval_seconds: float,
        timeout_seconds: float,
        credentials: Credentials = PLAIN,
    ) -> None:
        self.component = component
        self.address = address
        self.up = False
        self.answer: pb.ReadStatsResponse | None = None
        self.failed = self.asked = 0
        self.ask_seconds = 0.0
        self._answered_monotonic = float("-inf")
        self._clock = clock
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._channel = channels.aio_link(address, credentials)
        self._stub: stats_pb2_grpc.StatsAsyncStub = stats_pb2_grpc.StatsStub(self._channel)
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def age_seconds(self) -> float:
        """The age of the last answer; infinite: there was none."""
        return self._clock.monotonic() - self._answered_monotonic

    def forget(self) -> None:
        """Whether its last answer is too old to be exposed."""
        self.answer = None

    async def close(self) -> None:
        """Asks no more, and closes the channel."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._channel.close()

    async def _run(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                await self._ask(began)
            except Exception:  # noqa: BLE001 - the top of a loop: a process that is not asked any more would seem dead
                _log.exception("asking failed unexpectedly", extra={"address": self.address})
                self._fail()
            self.asked += 1
            # Not all at the same moment.
            await self._clock.pause(self._interval * JITTER.uniform(0.9, 1.1))

    async def _ask(self, began: float) -> None:
        try:
            self.answer = await self._stub.Read(pb.ReadStatsRequest(), timeout=self._timeout)
        except grpc.RpcError as error:
            why = status.from_rpc_error(error, self.address)
            if self.up or not self.asked:
                _log.warning("no figures", extra={"address": self.address, "reason": why.reason, "why": why.message})
            self._fail()
            return
        self._answered_monotonic = self._clock.monotonic()
        self.ask_seconds = self._answered_monotonic - began
        if not self.up:
            _log.info("answers", extra={"address": self.address, "of": str(self.component)})
        self.up = True

    def _fail(self) -> None:
        self.up = False
        self.failed += 1


class Targets:
    """The processes of one kind, as they are discovered. Event loop's thread only.

    Args:
        make: Makes what asks one of them.
    """

    def __init__(
        self, component: Component, discovery: Discovery, make: Callable[[Component, str], ScrapeTarget]
    ) -> None:
        self.component = component
        self._discovery = FollowedDiscovery(discovery, self._settle)
        self._make = make
        self._targets: dict[str, ScrapeTarget] = {}

    def __iter__(self) -> Iterator[ScrapeTarget]:
        return iter([target for _, target in sorted(self._targets.items())])

    def start(self) -> None:
        """Begins to follow the discovery."""
        self._discovery.start()

    @property
    def following(self) -> asyncio.Task[None]:
        """Ends only with the error of a discovery that is refused its answer; known after `start`."""
        return self._discovery.task

    async def close(self) -> None:
        """Follows the discovery no more, and closes all targets."""
        await self._discovery.stop()
        await asyncio.gather(*(target.close() for target in self._targets.values()))

    async def _settle(self, addresses: frozenset[str]) -> None:
        gone = [self._targets.pop(address) for address in self._targets.keys() - addresses]
        for address in addresses - self._targets.keys():
            self._targets[address] = self._make(self.component, address)
        await asyncio.gather(*(target.close() for target in gone))
