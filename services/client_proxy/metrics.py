"""What a client proxy says of itself (docs/metrics.md): made of counters that others keep, whenever it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keyhole.metrics.cardinality import MOST_STATES, OTHER, Kept
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.families import Figures, process_start
from keyhole.metrics.metric import Component
from keyhole.protocol.routing import RouteTable
from keyhole.v1 import stats_pb2 as pb
from services.client_proxy.counts import StateCounts
from services.client_proxy.directory import Directory
from services.client_proxy.grpc.query_servicer import ProxyServicer

_P = "keyhole_client_proxy"


class ProxyStats:
    """Used from the event loop's thread only.

    Args:
        name: Gives the proxy's, once it is bound.
    """

    def __init__(self, directory: Directory, queries: ProxyServicer, name: Callable[[], str]) -> None:
        self._directory = directory
        self._queries = queries
        self._name = name
        self._started = process_start()
        self._states = Kept(MOST_STATES)

    async def read(self) -> pb.ReadStatsResponse:
        """Every metric of this proxy, as of now."""
        name, counts, figures = self._name(), self._queries.counts, Figures()
        figures.process(Component.CLIENT_PROXY, (name,), self._started)
        figures.refusals(Component.CLIENT_PROXY, (name,), counts.refusals)
        self._now(figures, name)
        figures.observed(f"{_P}_lookup_seconds", (name,), counts.lookup_seconds)
        figures.observed(f"{_P}_frame_keys", (name,), counts.frame_keys)
        figures.observed(f"{_P}_scan_seconds", (name,), counts.scan_seconds)
        self._states.note(self._directory.tables)
        for state, table in self._directory.tables.items():
            self._routes(figures, (name, *self._states.label(state)), table)
        for state, of in counts.states.items():
            self._reads(figures, (name, *self._states.label(state)), of)
        self._reads(figures, (name, OTHER, OTHER), counts.elsewhere)
        return pb.ReadStatsResponse(component=pb.COMPONENT_CLIENT_PROXY, name=name, families=figures.families())

    def _now(self, figures: Figures, name: str) -> None:
        keys, scans, streams = self._queries.under_way
        figures.admission(Component.CLIENT_PROXY, (name,), self._queries.admission)
        figures.add(f"{_P}_open_keys", (name,), keys)
        figures.add(f"{_P}_open_scans", (name,), scans)
        figures.add(f"{_P}_open_streams", (name,), streams)
        figures.add(f"{_P}_silent_calls_total", (name,), self._directory.silent_calls)
        hedging = self._directory.hedging
        figures.add(f"{_P}_hedged_keys_total", (name,), hedging.keys if hedging else 0)
        figures.add(f"{_P}_hedge_answered_keys_total", (name,), hedging.answered_keys if hedging else 0)
        for status in ("reached", "silent", "lost"):
            figures.add(f"{_P}_known_servers", (name, status), 0)
        for link in self._directory.links:
            view = link.view
            status = "lost" if view is None or view.lost else "silent" if view.suspect else "reached"
            figures.add(f"{_P}_known_servers", (name, status), 1)

    @staticmethod
    def _routes(figures: Figures, labels: tuple[str, ...], table: RouteTable) -> None:
        figures.add(f"{_P}_unrouted_key_groups", labels, table.owners.addresses.count(""))

    @staticmethod
    def _reads(figures: Figures, labels: tuple[str, ...], of: StateCounts) -> None:
        figures.add(f"{_P}_lookup_keys_total", labels, of.keys)
        figures.add(f"{_P}_lookup_frames_total", labels, of.frames)
        figures.add(f"{_P}_route_hit_keys_total", labels, of.routed - of.missed)
        figures.add(f"{_P}_route_missed_keys_total", labels, of.missed)
        figures.add(f"{_P}_finished_scans_total", labels, of.scans)
        figures.add(f"{_P}_scanned_entries_total", labels, of.entries)
        for reason, count in of.failed.items():
            figures.add(f"{_P}_failed_reads_total", (*labels, reason), count)


def put_together(name: str, answers: Iterable[bytes]) -> pb.ReadStatsResponse:
    """What the processes of one proxy say, as one answer: each sample has the name of its process.

    Args:
        name: The proxy's.
        answers: Of each process a ReadStatsResponse, as bytes.
    """
    figures = Figures()
    for answer in answers:
        for family in pb.ReadStatsResponse.FromString(answer).families:
            for sample in family.samples:
                if BY_NAME[family.name].buckets:
                    figures.counted(family.name, tuple(sample.labels), sample.counts, sample.value)
                else:
                    figures.add(family.name, tuple(sample.labels), sample.value)
    return pb.ReadStatsResponse(component=pb.COMPONENT_CLIENT_PROXY, name=name, families=figures.families())
