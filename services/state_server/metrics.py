"""What a state server says of itself (docs/metrics.md): made of counters that others keep, whenever it is asked."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.metrics.cardinality import MOST_INDEXES, MOST_QUERIES, MOST_STATES, OTHER, Kept
from keyhole.metrics.counters import ReadCounts
from keyhole.metrics.families import Figures
from keyhole.metrics.metric import Component
from keyhole.rpc.convert_stamps import put_stamp
from keyhole.stores.base import StoreSize
from keyhole.stores.indexed import IndexedStore
from keyhole.v1 import state_pb2
from keyhole.v1 import stats_pb2 as pb
from services.state_server.host import QueryHost
from services.state_server.read.copies import Copy
from services.state_server.read.feed_progress import FeedLag, FeedProgress
from services.state_server.read.standing import Standing
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer
from services.state_server.write.spill import StagingRoom

_P = "keyhole_state_server"
_NAMES = {state_pb2.ROLE_OWNER: "owner", state_pb2.ROLE_STANDBY: "standby"}
# Stores are asked for their sizes no more often: some count.
_SIZES_SECONDS = 10.0
# A thousand states take some 30 ms: reads have their turn in between.
_TURN_STATES = 25

_Name = tuple[str, str]


class _Sizes(NamedTuple):
    """Of a store, and by field the rows that its indexes have."""

    whole: StoreSize
    indexes: Mapping[str, int]


@dataclass
class StoreSizes:
    """How large the stores are, as of a few seconds ago at most. Asked in a thread: some engines count."""

    clock: Clock
    known: Mapping[_Name, _Sizes] = field(default_factory=dict)
    until_monotonic: float = float("-inf")

    async def read(self, tables: Mapping[_Name, Table]) -> Mapping[_Name, _Sizes]:
        """The sizes by (application, state). Stores that were closed meanwhile are missing."""
        now = self.clock.monotonic()
        if now >= self.until_monotonic or tables.keys() - self.known.keys():
            self.until_monotonic = now + _SIZES_SECONDS
            self.known = await asyncio.to_thread(_sizes, list(tables.items()))
        return self.known


def _sizes(tables: Iterable[tuple[_Name, Table]]) -> dict[_Name, _Sizes]:
    found = {}
    for name, table in tables:
        store = table.store
        try:
            found[name] = _Sizes(store.size(), store.index_entries() if isinstance(store, IndexedStore) else {})
        except KeyholeError:  # it has been closed
            continue
    return found


class ServerStats:
    """Used from the event loop's thread only.

    Args:
        room: Whose staged rows are counted.
        directory: Of the stores.
    """

    def __init__(
        self,
        registry: Registry,
        queries: QueryServicer,
        room: StagingRoom,
        clock: Clock,
        directory: Path,
        store_limit_bytes: int,
    ) -> None:
        self._registry = registry
        self._queries = queries
        self._room = room
        self._clock = clock
        self._directory = directory
        self._store_limit_bytes = store_limit_bytes
        self._sizes = StoreSizes(clock)
        self._states = Kept(MOST_STATES)
        self._query_names = Kept(MOST_QUERIES)

    async def read(self) -> pb.ReadStatsResponse:
        """All of it. Other calls have their turn meanwhile."""
        figures = Figures()
        registry = self._registry
        sizes = await self._sizes.read(registry.tables)
        self._server(figures, sizes)
        hosts, tables = dict(registry.hosts), dict(registry.tables)
        self._query_names.note(hosts)
        self._states.note(tables)
        for name, host in hosts.items():
            self._host(figures, self._query_names.label(name), host)
        copies: list[pb.StateCopy] = []
        for number, (name, table) in enumerate(tables.items()):
            if number % _TURN_STATES == _TURN_STATES - 1:
                await asyncio.sleep(0)
            labels = (registry.server, *self._states.label(name))
            self._state(figures, labels, table, sizes.get(name))
            copies += self._copies(figures, labels, table)
        return pb.ReadStatsResponse(
            component=pb.COMPONENT_STATE_SERVER, name=registry.server, families=figures.families(), copies=copies
        )

    async def epochs(self, query: pb.EpochsOf) -> pb.ReadStatsResponse:
        """What the last epochs of a query took, without any figure; none of one that it holds nothing of."""
        host = self._registry.hosts.get((query.application, query.query))
        return pb.ReadStatsResponse(
            component=pb.COMPONENT_STATE_SERVER,
            name=self._registry.server,
            epochs=host.history.last if host is not None else (),
        )

    def _server(self, figures: Figures, sizes: Mapping[_Name, _Sizes]) -> None:
        registry, counts, labels = self._registry, self._registry.counts, (self._registry.server,)
        figures.process(Component.STATE_SERVER, labels, registry.started_ms / 1000)
        figures.refusals(Component.STATE_SERVER, labels, counts.refusals)
        figures.add(f"{_P}_ready", labels, registry.ready)
        figures.add(f"{_P}_draining", labels, registry.draining)
        figures.add(f"{_P}_held_states", labels, len(registry.tables))
        figures.add(f"{_P}_open_scans", labels, self._queries.open_scans)
        figures.admission(Component.STATE_SERVER, labels, self._queries.admission)
        figures.add(f"{_P}_reader_processes", labels, counts.reader_processes)
        figures.add(f"{_P}_passed_on_frames_total", labels, counts.passed_on)
        # With this process's own.
        figures.add(f"{_P}_open_lookup_calls", labels, counts.reader_calls)
        figures.add(f"{_P}_cpu_seconds_total", labels, counts.reader_cpu_seconds)
        figures.add(f"{_P}_resident_memory_bytes", labels, counts.reader_resident_bytes)
        figures.add(f"{_P}_open_watches", labels, self._queries.watches.under_way)
        figures.add(f"{_P}_staging_bytes", (*labels, "memory"), self._room.memory_bytes)
        figures.add(f"{_P}_staging_bytes", (*labels, "disk"), self._room.disk_bytes)
        figures.add(f"{_P}_store_limit_bytes", labels, self._store_limit_bytes)
        figures.add(f"{_P}_disk_used_bytes", labels, sum(size.whole.bytes for size in sizes.values()))
        if self._directory.exists():  # a memory store has none
            usage = shutil.disk_usage(self._directory)
            figures.add(f"{_P}_disk_bytes", labels, usage.total)
            figures.add(f"{_P}_disk_free_bytes", labels, usage.free)
        figures.observed(f"{_P}_lookup_seconds", labels, counts.lookup_seconds)
        figures.observed(f"{_P}_frame_keys", labels, counts.frame_keys)
        figures.observed(f"{_P}_scan_seconds", labels, counts.scan_seconds)
        figures.observed(f"{_P}_commit_seconds", labels, counts.commit_seconds)
        _failed(figures, (*labels, OTHER, OTHER), counts.elsewhere)

    def _host(self, figures: Figures, name: _Name, host: QueryHost) -> None:
        labels, epochs = (self._registry.server, *name), host.epochs
        if host.lease.age_seconds != float("inf"):
            figures.add(f"{_P}_lease_age_seconds", labels, host.lease.age_seconds)
        if self._registry.replica:
            return
        figures.add(f"{_P}_staged_epoch", labels, epochs.staged_epoch)
        figures.add(f"{_P}_committed_epoch", labels, epochs.committed_epoch)
        figures.add(f"{_P}_committed_epochs_total", labels, epochs.committed)
        figures.add(f"{_P}_replayed_epochs_total", labels, epochs.replayed)
        for reason, count in epochs.failed.items():
            figures.add(f"{_P}_failed_commits_total", (*labels, reason), count)

    def _state(self, figures: Figures, labels: tuple[str, ...], table: Table, size: _Sizes | None) -> None:
        reads, rows = table.reads, table.rows
        if size is not None:
            figures.add(f"{_P}_store_entries", labels, size.whole.entries)
            figures.add(f"{_P}_store_bytes", labels, size.whole.bytes)
            _indexes(figures, labels, table, size.indexes)
        figures.add(f"{_P}_warm_key_groups", labels, len(table.given.warm))
        figures.add(f"{_P}_restoring_key_groups", labels, len(table.given.assigned - table.groups))
        figures.add(f"{_P}_restored_records", labels, table.progress.restored)
        figures.add(f"{_P}_to_restore_records", labels, table.progress.total)
        figures.add(f"{_P}_staged_rows_total", labels, rows.staged_rows)
        figures.add(f"{_P}_staged_bytes_total", labels, rows.staged_bytes)
        figures.add(f"{_P}_committed_rows_total", labels, rows.committed_rows)
        figures.add(f"{_P}_committed_bytes_total", labels, rows.committed_bytes)
        figures.add(f"{_P}_lookup_keys_total", labels, reads.keys)
        figures.add(f"{_P}_lookup_frames_total", labels, reads.frames)
        figures.add(f"{_P}_finished_scans_total", labels, reads.scans)
        figures.add(f"{_P}_scanned_entries_total", labels, reads.entries)
        figures.add(f"{_P}_scanned_bytes_total", labels, reads.entry_bytes)
        figures.add(f"{_P}_watched_bytes", labels, table.changes.kept_bytes)
        figures.add(f"{_P}_let_go_watches_total", labels, table.changes.let_go)
        _failed(figures, labels, reads)
        if table.feed is not None:
            _fed(figures, labels, table.feed, table.feed.lag())

    def _copies(self, figures: Figures, labels: tuple[str, ...], table: Table) -> Iterable[pb.StateCopy]:
        given = table.given
        if given.assigned or table.groups:
            yield self._copy(figures, labels, table, state_pb2.ROLE_OWNER, table.owned, given.assigned)
        if given.followed or table.standby.groups:
            copy = self._copy(figures, labels, table, state_pb2.ROLE_STANDBY, table.standby, given.followed)
            if table.standby.groups:
                figures.add(f"{_P}_standby_lag_epochs", labels, copy.lag_epochs)
                if copy.as_of_ms:
                    figures.add(f"{_P}_standby_lag_seconds", labels, self._age(copy.as_of_ms))
            yield copy

    def _copy(
        self,
        figures: Figures,
        labels: tuple[str, ...],
        table: Table,
        role: state_pb2.Role.ValueType,
        copy: Copy,
        assigned: frozenset[int],
    ) -> pb.StateCopy:
        labels = (*labels, _NAMES[role])
        figures.add(f"{_P}_assigned_key_groups", labels, len(assigned))
        figures.add(f"{_P}_readable_key_groups", labels, len(copy.groups))
        message = pb.StateCopy(
            application=table.descriptor.application,
            state=table.descriptor.state,
            all_key_groups=table.descriptor.key_groups,
            role=role,
            key_groups=copy.groups,
            assigned_key_groups=assigned,
        )
        if not copy.groups:
            return message
        standings = copy.all_standings
        oldest = min(standings, key=lambda standing: standing.stamp.epoch)
        _stand(message, oldest, standings)
        stamp = oldest.stamp
        if role == state_pb2.ROLE_OWNER and table.feed is None:
            message.as_of_ms = table.confirmed_ms
        figures.add(f"{_P}_copy_epoch", labels, stamp.epoch)
        if stamp.commit_time_ms:
            figures.add(f"{_P}_commit_time_seconds", labels, stamp.commit_time_ms / 1000)
            figures.add(f"{_P}_commit_age_seconds", labels, self._age(stamp.commit_time_ms))
        if stamp.watermark_ms:
            figures.add(f"{_P}_watermark_age_seconds", labels, self._age(stamp.watermark_ms))
        return message

    def _age(self, since_ms: int) -> float:
        return max(0.0, (self._clock.now_ms() - since_ms) / 1000)


def _stand(message: pb.StateCopy, oldest: Standing, standings: Iterable[Standing]) -> None:
    put_stamp(oldest.stamp, message)
    message.assignment_version = oldest.assignment_version
    message.as_of_ms = min(standing.as_of_ms for standing in standings)
    message.lag_epochs = max(standing.lag_epochs for standing in standings)


def _fed(figures: Figures, labels: tuple[str, ...], feed: FeedProgress, lag: FeedLag) -> None:
    figures.add(f"{_P}_unapplied_updates", labels, lag.updates)
    figures.add(f"{_P}_updates_lag_seconds", labels, lag.seconds)
    figures.observed(f"{_P}_update_seconds", labels, feed.seconds)
    figures.add(f"{_P}_updates_paused", labels, feed.full)
    figures.add(f"{_P}_uncommitted_rows", labels, feed.held_rows)
    figures.add(f"{_P}_uncommitted_bytes", labels, feed.held_bytes)
    figures.add(f"{_P}_stopped_key_groups", labels, lag.stopped)
    figures.add(f"{_P}_waiting_key_groups", labels, lag.waiting)
    figures.add(f"{_P}_applied_updates_total", labels, feed.applied)
    figures.add(f"{_P}_repeated_updates_total", labels, feed.repeated)
    figures.add(f"{_P}_refused_updates_total", labels, feed.refused)
    figures.add(f"{_P}_assumed_updates_total", labels, feed.assumed)


def _indexes(figures: Figures, labels: tuple[str, ...], table: Table, entries: Mapping[str, int]) -> None:
    """Of those that are declared: also of one that no scan has used."""
    for number, name in enumerate(entries):
        of = (*labels, name if number < MOST_INDEXES and OTHER not in labels else OTHER)
        figures.add(f"{_P}_index_entries", of, entries[name])
        figures.add(f"{_P}_indexed_scans_total", of, table.reads.indexed[name])


def _failed(figures: Figures, labels: tuple[str, ...], reads: ReadCounts) -> None:
    for reason, count in reads.failed.items():
        figures.add(f"{_P}_failed_reads_total", (*labels, reason), count)
