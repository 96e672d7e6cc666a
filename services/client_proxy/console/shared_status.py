"""What all servers say of themselves, asked once however many consoles are open."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from keyhole.protocol.server_view import StateName
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2, stats_pb2
from services.client_proxy.console.group_runs import Awaited
from services.client_proxy.console.shared_rounds import SharedRounds
from services.client_proxy.directory import Directory

_OLD_SECONDS = 10.0
_SERVER_SECONDS = 2.0
_SERVER = "keyhole_state_server"


class Writes(NamedTuple):
    """What all servers have committed of a state since each began."""

    rows: int
    bytes: int


class Latency(NamedTuple):
    """From the broker's timestamps of updates until readers saw them, of all servers since each began.

    Attributes:
        bounds: Upper ones, in seconds.
        counts: One more: the last one is of what is above all of them.
        seconds: All together.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float


class ServerReports(NamedTuple):
    """The answers of one round.

    Attributes:
        at_ms: When all were there: milliseconds since 1970, by the proxy's clock.
        servers: By address. `unreachable` says why one has not answered.
        writes: Of each state that a server has counted.
        replays: By application and query: epochs that servers were sent again after they had committed them.
        latencies: Of each state that is fed by updates.
        awaited: Of each state that servers restore, what they do not answer for yet.
    """

    at_ms: int
    servers: dict[str, pb.ServerStatus]
    writes: dict[StateName, Writes]
    replays: dict[tuple[str, str], int]
    latencies: dict[StateName, Latency]
    awaited: dict[StateName, list[Awaited]]


class SharedStatus:
    """Asks all servers. One that keeps silent holds nobody up for longer than half a second, where the round before is
    no older than ten. Event loop's thread only.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._rounds = SharedRounds[None, ServerReports](directory.clock, self._ask, _OLD_SECONDS)

    async def now(self) -> ServerReports:
        """The newest answers: not older than FRESH_SECONDS, where all servers answer in time."""
        return await self._rounds.of(None)

    async def close(self) -> None:
        """Ends the round that is under way."""
        await self._rounds.close()

    async def _ask(self, _: None) -> ServerReports:
        links = self._directory.links
        statuses, figures = await asyncio.gather(
            asyncio.gather(*(link.describe(_SERVER_SECONDS) for link in links)),
            asyncio.gather(*(link.figures(_SERVER_SECONDS) for link in links)),
        )
        servers = {link.address: status for link, status in zip(links, statuses, strict=True)}
        counted = [of for of in figures if of is not None]
        rows = _totals(counted, f"{_SERVER}_committed_rows_total", "state")
        size = _totals(counted, f"{_SERVER}_committed_bytes_total", "state")
        writes = {name: Writes(count, size.get(name, 0)) for name, count in rows.items()}
        replays = _totals(counted, f"{_SERVER}_replayed_epochs_total", "query")
        at_ms = self._directory.clock.now_ms()
        return ServerReports(at_ms, servers, writes, replays, _latencies(counted), _awaited(counted))


def _awaited(figures: Iterable[stats_pb2.ReadStatsResponse]) -> dict[StateName, list[Awaited]]:
    found: dict[StateName, list[Awaited]] = {}
    for server, copy in ((of_server.name, copy) for of_server in figures for copy in of_server.copies):
        groups = frozenset(copy.assigned_key_groups).difference(copy.key_groups)
        if groups:
            awaited = Awaited(server, copy.role == state_pb2.ROLE_OWNER, groups)
            found.setdefault((copy.application, copy.state), []).append(awaited)
    return found


def _totals(figures: Iterable[stats_pb2.ReadStatsResponse], metric: str, within: str) -> dict[tuple[str, str], int]:
    """The sum of a counter over all servers, by application and what else labels it."""
    totals: dict[tuple[str, str], int] = {}
    for name, _, sample in _samples(figures, metric, within):
        totals[name] = totals.get(name, 0) + int(sample.value)
    return totals


def _latencies(figures: Iterable[stats_pb2.ReadStatsResponse]) -> dict[StateName, Latency]:
    totals: dict[StateName, Latency] = {}
    for name, family, sample in _samples(figures, f"{_SERVER}_update_seconds", "state"):
        bounds = tuple(family.bounds)
        before = totals.get(name) or Latency(bounds, (0,) * len(sample.counts), 0.0)
        if before.bounds == bounds:  # servers of several builds may have others
            counts = tuple(map(operator.add, before.counts, sample.counts))
            totals[name] = Latency(bounds, counts, before.seconds + sample.value)
    return totals


def _samples(
    figures: Iterable[stats_pb2.ReadStatsResponse], metric: str, within: str
) -> Iterator[tuple[tuple[str, str], stats_pb2.MetricFamily, stats_pb2.MetricSample]]:
    """All of a metric, by application and what else labels it, each with its family."""
    for family in (family for of_server in figures for family in of_server.families if family.name == metric):
        labels = list(family.labels)
        application, other = labels.index("application"), labels.index(within)
        for sample in family.samples:
            yield (sample.labels[application], sample.labels[other]), family, sample
