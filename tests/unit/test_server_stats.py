"""What a state server says of itself: its bounds, and what it is made of."""

from __future__ import annotations

import functools
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole import field
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.metrics.cardinality import MOST_INDEXES, MOST_STATES, OTHER
from keyhole.metrics.counters import Histogram
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.selection import Selection
from keyhole.model.state import ValueField, ValueSchema
from keyhole.rpc.convert import key_to_proto
from keyhole.security.authentication import ANYBODY
from keyhole.stores.base import Advance, Batch
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.v1 import query_pb2, state_pb2
from services.state_server.metrics import ServerStats
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer
from services.state_server.write.spill import StagingRoom
from tests.support import figures
from tests.support.states import KEY_GROUPS, descriptor

ALL_GROUPS = frozenset(range(KEY_GROUPS))
CONTEXT: Any = SimpleNamespace(peer=lambda: "", time_remaining=lambda: None)


class Server:
    """A registry whose tables own all their key groups, as of an epoch that was committed 7 s ago."""

    def __init__(self, states: int, directory: Path) -> None:
        self.clock, self.key = ManualClock(), descriptor().key
        self.registry = Registry("server-a", "incarnation", lambda: "", self.clock.now_ms(), 511)
        self.queries = QueryServicer(self.registry, self.clock, functools.partial(MemoryChangelog, MemoryKafka()))
        self._engine = MemoryEngine()
        room = StagingRoom(1 << 20, 1 << 20, directory)
        self.stats = ServerStats(self.registry, self.queries, room, self.clock, directory, 1 << 30)
        lease = Lease(self.clock, 3.0)
        lease.confirm()
        for number in range(states):
            self.add(f"state-{number}", lease)

    def add(self, state: str, lease: Lease, **changes: object) -> None:
        of = descriptor(state=state, topic_id="topic", **changes)
        table = Table("server-a", of, IndexedStore(self._engine.open("app", state, "topic"), of), lease)
        table.given.assign(ALL_GROUPS)
        standing = Standing(EpochStamp(3, 0, self.clock.now_ms() - 7_000, self.clock.now_ms() - 9_000))
        positions = {group: Position(1, 3, 1, 0) for group in ALL_GROUPS}
        table.publish(table.store.snapshot(), ALL_GROUPS, standing, positions)
        self.registry.tables["app", state] = table

    async def get(self, state: str, *keys: str) -> None:
        ref = reference(state)
        request = query_pb2.GetManyRequest(state=ref, keys=[key_to_proto(self.key, key) for key in keys])
        await self.queries.GetMany(request, CONTEXT)

    def frame(self, request: query_pb2.LookupRequest) -> None:
        with self.queries.admission.call(CONTEXT) as call:
            self.queries.frame(request, ANYBODY, call)


def reference(state: str) -> query_pb2.StateRef:
    return query_pb2.StateRef(application="app", state=state)


async def test_a_thousand_states_are_told_within_the_bounds_and_nothing_is_missing_from_the_sums(
    tmp_path: Path,
) -> None:
    server = Server(1_000, tmp_path)
    for number in range(1_000):
        await server.get(f"state-{number}", "one", "two")
    stats = await server.stats.read()
    assert not figures.beyond_the_catalogue(stats)
    assert figures.value(stats, "keyhole_state_server_held_states") == 1_000
    assert figures.value(stats, "keyhole_state_server_assigned_key_groups", role="owner") == 1_000 * KEY_GROUPS
    assert figures.value(stats, "keyhole_state_server_lookup_keys_total") == 2_000
    assert figures.value(stats, "keyhole_state_server_lookup_keys_total", state="state-99") == 2
    others = figures.value(stats, "keyhole_state_server_lookup_keys_total", application=OTHER, state=OTHER)
    assert others == 2 * (1_000 - MOST_STATES)
    # The cluster's view is made of these, so they are all there.
    assert len(stats.copies) == 1_000


async def test_a_state_that_is_told_apart_stays_so_when_others_come(tmp_path: Path) -> None:
    server = Server(MOST_STATES, tmp_path)
    await server.stats.read()
    lease = Lease(server.clock, 3.0)
    server.add("a-state-that-sorts-before-them", lease)
    await server.get("a-state-that-sorts-before-them", "one")
    stats = await server.stats.read()
    assert figures.value(stats, "keyhole_state_server_lookup_keys_total", state=OTHER) == 1
    assert not figures.value(stats, "keyhole_state_server_lookup_keys_total", state="state-0")


async def test_ages_are_those_of_what_it_answers_with(tmp_path: Path) -> None:
    server = Server(1, tmp_path)
    server.clock.advance(1.0)
    stats = await server.stats.read()
    owner = {"application": "app", "state": "state-0", "role": "owner"}
    assert figures.value(stats, "keyhole_state_server_copy_epoch", **owner) == 3
    assert figures.value(stats, "keyhole_state_server_commit_age_seconds", **owner) == pytest.approx(8.0)
    assert figures.value(stats, "keyhole_state_server_watermark_age_seconds", **owner) == pytest.approx(10.0)
    (copy,) = stats.copies
    assert (copy.role, copy.all_key_groups) == (state_pb2.ROLE_OWNER, KEY_GROUPS)
    assert list(copy.key_groups) == sorted(ALL_GROUPS)


async def test_reads_of_made_up_names_are_counted_together(tmp_path: Path) -> None:
    server = Server(1, tmp_path)
    for number in range(50):
        frame = query_pb2.LookupRequest(state=reference(f"made-up-{number}"), keys=[key_to_proto(server.key, "one")])
        server.frame(frame)
    stats = await server.stats.read()
    failed = figures.value(
        stats, "keyhole_state_server_failed_reads_total", application=OTHER, state=OTHER, reason="UNKNOWN_STATE"
    )
    assert failed == 50
    assert figures.value(stats, "keyhole_state_server_failed_reads_total") == 50
    assert figures.value(stats, "keyhole_state_server_frame_keys") == 50


async def test_frames_and_their_keys_are_counted(tmp_path: Path) -> None:
    server = Server(1, tmp_path)
    codec = StateCodec(descriptor(state="state-0"))
    keys = [codec.storage_key(f"key-{number}") for number in range(40)]
    server.frame(query_pb2.LookupRequest(state=reference("state-0"), topic_id="topic", storage_keys=keys))
    stats = await server.stats.read()
    assert figures.value(stats, "keyhole_state_server_lookup_keys_total", state="state-0") == 40
    assert figures.value(stats, "keyhole_state_server_lookup_frames_total", state="state-0") == 1
    assert figures.value(stats, "keyhole_state_server_lookup_seconds") == 1


def test_a_histogram_counts_a_value_below_the_bound_that_it_is_at_most() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([2, 1, 1], 102.0)


async def test_of_each_index_its_rows_and_the_scans_by_it_are_told_within_the_bounds(tmp_path: Path) -> None:
    server = Server(0, tmp_path)
    lease = Lease(server.clock, 3.0)
    lease.confirm()
    fields = tuple(f"f{number}" for number in range(MOST_INDEXES + 2))
    value = ValueSchema(1, tuple(ValueField(name, "int") for name in fields))
    server.add("by-fields", lease, value=value, index=fields)
    table = server.registry.tables["app", "by-fields"]
    rows = {table.codec.storage_key(f"k{number}"): number for number in range(200)}
    epochs = {group: Advance(START, Position(1, 3, 1, 0)) for group in ALL_GROUPS}
    puts = sorted((key, encode_row(1, [number] * len(fields))) for key, number in rows.items())
    table.store.apply(Batch(puts, advances=epochs))
    table.publish(table.store.snapshot(), ALL_GROUPS, table.standing, {}, sequence=1)
    select = SelectedEntries(table.descriptor, Selection(field("f1") == 7))
    for group in ALL_GROUPS:
        with closing(table.scan(table.codec.group_range(group), indexed=select.indexed)) as scanned:
            assert len([key for key, _ in scanned.entries if key]) <= 1
    stats = await server.stats.read()
    assert not figures.beyond_the_catalogue(stats)
    entries, scans = "keyhole_state_server_index_entries", "keyhole_state_server_indexed_scans_total"
    assert figures.value(stats, entries, field="f0") == figures.value(stats, entries, field="f9") == 200
    assert figures.value(stats, entries, field=OTHER) == 2 * 200
    assert [figures.value(stats, scans, field=name) for name in ("f0", "f1", OTHER)] == [0, KEY_GROUPS, 0]
    # Of the store its own entries are told, without those of indexes.
    assert figures.value(stats, "keyhole_state_server_store_entries") == 200
