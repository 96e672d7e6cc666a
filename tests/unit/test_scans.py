"""Scans of one server: a table on each kind of store, and what all scans together may take."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyhole import Predicate, field
from keyhole.encoding.codec import EntryRange
from keyhole.errors import (
    DeadlineExceeded,
    EpochNotReached,
    KeyTooLong,
    NotOwner,
    NotReady,
    Overloaded,
    TooStale,
    Unconfirmed,
)
from keyhole.model.epoch import EpochStamp, Position
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import KeyType, StateDescriptor, TtlClock
from keyhole.rpc.convert_predicates import predicate_to_proto
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.v1 import predicate_pb2
from keyhole.v1.state_pb2 import ROLE_STANDBY
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer
from tests.support.counting_engine import CountingEngine
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, Epochs, hourly, hours, row, scan_request
from tests.support.waiting import eventually

ALL_GROUPS = frozenset(range(KEY_GROUPS))
CHANGELOG = functools.partial(MemoryChangelog, MemoryKafka())


ENGINES: dict[str, Callable[[Path], StoreEngine]] = {
    "memory": lambda path: MemoryEngine(),
    "lmdb": lambda path: LmdbEngine(StoreLimits(path, 1 << 30)),
    "rocksdb": lambda path: RocksdbEngine(StoreLimits(path, 1 << 30)),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CountingEngine]:
    made = CountingEngine(ENGINES[request.param](tmp_path))
    yield made
    made.close()


def table_on(engine: StoreEngine, of: StateDescriptor | None = None, clock: ManualClock | None = None) -> Table:
    lease = Lease(clock or ManualClock(), seconds=3.0)
    lease.confirm()
    return Table("server-a", of or hourly(keep_epochs=1), engine.open(APPLICATION, STATE, "topic-1"), lease)


@pytest.fixture
def table(engine: CountingEngine) -> Table:
    return table_on(engine)


def within(table: Table, sensor: str, start: tuple[int, ...] = (), stop: tuple[int, ...] = ()) -> EntryRange:
    return table.codec.entry_range(sensor, start, stop)


def read(table: Table, sensor: str, start: tuple[int, ...] = (), stop: tuple[int, ...] = (), **how: bool) -> list[int]:
    """The map keys."""
    scanned = table.scan(within(table, sensor, start, stop), **how)
    found = [table.codec.entry(key)[1][0] for key, row in scanned.entries if row is not None]
    scanned.close()
    return found  # type: ignore[return-value]  # whole numbers


def test_the_entries_of_one_key_come_in_order_and_those_of_others_do_not(table: Table) -> None:
    epochs = Epochs(table)
    others = {name: hours(name, range(3)) for name in ("sensor-6", "sensor-70", "sensor-", "")}
    epochs.commit({**hours("sensor-7", [5, -3, 300, 0]), **{k: v for of in others.values() for k, v in of.items()}})
    assert read(table, "sensor-7") == [-3, 0, 5, 300]
    assert read(table, "sensor-7", descending=True) == [300, 5, 0, -3]
    assert read(table, "sensor-7", (0,), (300,)) == [0, 5]
    assert read(table, "sensor-7", (0,), (300,), descending=True) == [5, 0]
    assert read(table, "sensor-7", (300,), (0,)) == read(table, "sensor-7", (1,), (5,)) == read(table, "nobody") == []
    assert read(table, "") == [0, 1, 2]


def test_all_of_an_answer_is_of_one_epoch_whatever_is_published_while_it_is_read(
    table: Table, engine: CountingEngine
) -> None:
    epochs = Epochs(table)
    epochs.commit(hours("sensor-7", range(100), count=1))
    scanned = table.scan(within(table, "sensor-7"))
    begun = [next(scanned.entries) for _ in range(10)]
    for epoch in range(2, 6):
        # Others in their places, one that is new, one that is gone.
        epochs.commit({**hours("sensor-7", range(100 + epoch), count=epoch), ("sensor-7", 50): None})
    assert engine.snapshots == 2
    assert [stored for _, stored in (*begun, *scanned.entries)] == [row(float(hour)) for hour in range(100)]
    assert scanned.source.epoch == 1
    scanned.close()
    assert engine.snapshots == 1
    assert table.scan(within(table, "sensor-7")).source.epoch == 5
    assert len(read(table, "sensor-7")) == 104


def test_a_snapshot_is_let_go_of_by_the_last_who_holds_it(table: Table, engine: CountingEngine) -> None:
    epochs = Epochs(table)
    epochs.commit(hours("sensor-7", range(3)))
    first, second = (table.scan(within(table, "sensor-7")) for _ in range(2))
    epochs.commit(hours("sensor-7", range(4)))
    assert engine.snapshots == 2
    first.close()
    first.close()
    assert engine.snapshots == 2
    assert len(list(second.entries)) == 3
    second.close()
    assert engine.snapshots == 1
    table.close()
    assert engine.snapshots == 0


def test_a_scan_goes_on_when_its_key_group_is_withdrawn_or_its_table_closed(
    table: Table, engine: CountingEngine
) -> None:
    Epochs(table).commit(hours("sensor-7", range(3)))
    scanned = table.scan(within(table, "sensor-7"))
    next(scanned.entries)
    table.given.release(ALL_GROUPS)
    with pytest.raises(NotOwner):
        table.scan(within(table, "sensor-7"))
    table.close()
    assert len(list(scanned.entries)) == 2
    scanned.close()
    assert engine.snapshots == 0


def test_a_store_that_is_closed_ends_its_scans_with_a_reason(table: Table, engine: CountingEngine) -> None:
    Epochs(table).commit(hours("sensor-7", range(3)))
    scanned = table.scan(within(table, "sensor-7"))
    next(scanned.entries)
    table.close()
    table.store.close()
    with pytest.raises(NotReady, match="closed"):
        list(scanned.entries)
    scanned.close()
    assert engine.snapshots == 0


def test_what_is_refused_holds_no_snapshot(engine: CountingEngine) -> None:
    clock = ManualClock()
    table = table_on(engine, clock=clock)
    with pytest.raises(NotReady):
        table.scan(within(table, "sensor-7"))
    Epochs(table).commit(hours("sensor-7", range(3)))
    with pytest.raises(EpochNotReached, match="epoch 1"):
        table.scan(within(table, "sensor-7"), ReadBounds(min_epoch=2))
    with pytest.raises(KeyTooLong):
        table.scan(within(table, "s" * 600))
    clock.advance(3.5)
    with pytest.raises(Unconfirmed):
        table.scan(within(table, "sensor-7"), ReadBounds(stale=Stale.NEVER))
    with pytest.raises(TooStale):
        table.scan(within(table, "sensor-7"), ReadBounds(max_staleness_ms=1000))
    assert table.scan(within(table, "sensor-7")).source.unconfirmed
    table.close()
    # The one that was let through.
    assert engine.snapshots == 1


def test_a_bound_may_be_longer_than_the_store_takes(engine: CountingEngine) -> None:
    table = table_on(engine, hourly(KeyType.STRING))
    Epochs(table).commit({("sensor-7", name): row(1.0) for name in ("a", "m" * 400, "z")})

    def found(start: tuple[str, ...], stop: tuple[str, ...], *, descending: bool = False) -> list[str]:
        scanned = table.scan(table.codec.entry_range("sensor-7", start, stop), descending=descending)
        names = [str(table.codec.entry(key)[1][0])[:1] for key, _ in scanned.entries]
        scanned.close()
        return names

    long = "m" * 1000
    assert found((long,), ()) == ["z"]
    assert found((), (long,)) == ["a", "m"]
    assert found((), (long,), descending=True) == ["m", "a"]
    assert found((long,), (), descending=True) == ["z"]


def test_a_standby_answers_for_the_key_groups_that_it_follows(table: Table) -> None:
    epochs = Epochs(table)
    epochs.apply(hours("sensor-7", range(3)))
    table.given.follow(ALL_GROUPS, shown=ALL_GROUPS)
    table.standby.publish(table.store.snapshot(), ALL_GROUPS, Standing(EpochStamp(1, 1, 1000, 0)), {})
    scanned = table.scan(within(table, "sensor-7"))
    assert (scanned.source.role, len(list(scanned.entries))) == (ROLE_STANDBY, 3)
    scanned.close()
    with pytest.raises(NotOwner):
        table.scan(within(table, "sensor-7"), ReadBounds(stale=Stale.NEVER))


def test_a_key_group_that_stands_elsewhere_says_so(table: Table) -> None:
    Epochs(table).apply(hours("sensor-7", range(3)))
    place = within(table, "sensor-7")
    ahead = {int.from_bytes(place.prefix[:2], "big"): Position(9, 5, 1, 0, 5000)}
    table.given.taken_over()
    table.publish(table.store.snapshot(), ALL_GROUPS, Standing(EpochStamp(4, 1, 4000, 0)), ahead)
    scanned = table.scan(place, ReadBounds(min_epoch=5))
    assert (scanned.source.epoch, scanned.source.commit_time_ms) == (5, 5000)
    scanned.close()


def test_what_has_expired_is_hidden_and_what_expires_while_it_is_read_is_not(engine: CountingEngine) -> None:
    clock = ManualClock()
    table = table_on(engine, hourly(ttl_ms=1000, ttl_clock=TtlClock.PROCESSING_TIME), clock)
    now = clock.now_ms()
    stamps = {0: now - 1, 1: now + 10, 2: now - 1, 3: now + 10}
    Epochs(table).commit({("sensor-7", n): at.to_bytes(8, "big") + row(float(n)) for n, at in stamps.items()})
    scanned = table.scan(within(table, "sensor-7"))
    begun = [next(scanned.entries)[1], next(scanned.entries)[1]]
    clock.advance(60)
    assert [*begun, *(stored for _, stored in scanned.entries)] == [None, row(1.0), None, row(3.0)]
    scanned.close()
    assert read(table, "sensor-7") == []


def collect(scans: Scans, table: Table, limit: int = 0) -> list[int]:
    """The lengths of the pages."""
    with scans.open(lambda: table.scan(within(table, "sensor-7"))) as scanned:
        return [len(page.keys) for page in scans.pages(scanned, limit)]


async def test_pages_end_where_they_are_full_by_entries_or_by_bytes(table: Table) -> None:
    Epochs(table).commit(hours("sensor-7", range(10)))
    assert collect(Scans(ScanLimits(page_entries=4)), table) == [4, 4, 2]
    assert collect(Scans(ScanLimits(page_entries=5)), table) == [5, 5, 0]
    assert collect(Scans(ScanLimits(page_entries=4)), table, limit=4) == [4]
    assert collect(Scans(ScanLimits(page_entries=4)), table, limit=2**64 - 1) == [4, 4, 2]
    assert collect(Scans(ScanLimits(page_bytes=1)), table, limit=3) == [1, 1, 1]
    assert collect(Scans(ScanLimits()), table, limit=1) == [1]


async def test_entries_that_are_not_shown_take_their_turns_too_and_do_not_count(engine: CountingEngine) -> None:
    table = table_on(engine, hourly(ttl_ms=1000))
    far = 10**15
    stamps = [0x01] * 10 + [far, far]
    Epochs(table).commit({("sensor-7", n): stamp.to_bytes(8, "big") + row(float(n)) for n, stamp in enumerate(stamps)})
    assert collect(Scans(ScanLimits(turn_entries=4)), table) == [0, 0, 2, 0]
    assert collect(Scans(ScanLimits(turn_entries=4)), table, limit=1) == [0, 0, 1]


async def test_between_two_pages_and_among_entries_that_are_hidden_others_have_their_turn(
    engine: CountingEngine,
) -> None:
    """U11: a scan of all that a key has does not keep lookups waiting."""
    table = table_on(engine, hourly(ttl_ms=1000))
    hidden = {("sensor-7", n): (1).to_bytes(8, "big") + row(0.0) for n in range(100)}
    shown = {("sensor-7", n): (10**15).to_bytes(8, "big") + row(0.0) for n in range(100, 200)}
    Epochs(table).commit(hidden | shown)
    registry = Registry("server-a", "incarnation", lambda: "", 0, 511)
    registry.tables[APPLICATION, STATE] = table
    servicer = QueryServicer(registry, ManualClock(), CHANGELOG, ScanLimits(page_entries=10, turn_entries=10))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(other())
    found = 0
    async for page in servicer.Scan(scan_request(), None):  # type: ignore[arg-type]  # it needs no context
        found += len(page.values)
    others.cancel()
    assert found == 100
    assert turns >= 19


async def test_of_a_key_group_the_keys_alone_are_read_that_a_predicate_can_be_true_of(engine: CountingEngine) -> None:
    table = table_on(engine)
    rows = hours("sensor-7", range(50)) | hours("sensor-8", range(30))
    Epochs(table).commit(rows)
    registry = Registry("server-a", "incarnation", lambda: "", 0, 511)
    registry.tables[APPLICATION, STATE] = table
    servicer = QueryServicer(registry, ManualClock(), CHANGELOG)

    async def read_of(where: Predicate) -> tuple[int, int]:
        """How many entries are given, and how many rows of the store were read for them."""
        before, given = engine.read_rows, 0
        for group in range(KEY_GROUPS):
            request = scan_request()
            request.ClearField("key")
            request.key_group.key_group = group
            request.selection.where.CopyFrom(predicate_to_proto(where))
            async for page in servicer.Scan(request, None):  # type: ignore[arg-type]  # it needs no context
                given += len(page.values)
        return given, engine.read_rows - before

    sensor, hour = field("sensor"), field("m0")
    assert await read_of(field("count") >= 1) == (80, 80)
    assert await read_of(sensor == "sensor-8") == (30, 30)
    assert await read_of((sensor == "sensor-7") & (hour >= 40) & (field("celsius") < 45)) == (5, 10)
    assert await read_of(sensor == "nobody") == (0, 0)
    assert await read_of((sensor < "a") & (sensor > "b")) == (0, 0)
    # Of its first column nothing is known.
    assert await read_of(hour == 7) == (2, 80)


@pytest.mark.parametrize(("turn", "messages"), [(10, 1), (9, 2), (1, 2)])
async def test_aggregates_are_one_message_where_they_take_one_turn_and_others_hear_first_that_they_are_computed(
    table: Table, turn: int, messages: int
) -> None:
    Epochs(table).commit(hours("sensor-7", range(9)))
    registry = Registry("server-a", "incarnation", lambda: "", 0, 511)
    registry.tables[APPLICATION, STATE] = table
    servicer = QueryServicer(registry, ManualClock(), CHANGELOG, ScanLimits(turn_entries=turn))
    request = scan_request()
    request.aggregates.add(kind=predicate_pb2.AGGREGATE_KIND_COUNT)
    answer = [page async for page in servicer.Scan(request, None)]  # type: ignore[arg-type]  # it needs no context
    assert [len(page.aggregates) for page in answer] == [0] * (messages - 1) + [1]
    assert answer[-1].aggregates[0].count == 9
    assert {page.source.server for page in answer} == {"server-a"}


async def test_beyond_so_many_scans_another_one_is_refused_until_one_has_ended(
    table: Table, engine: CountingEngine
) -> None:
    Epochs(table).commit(hours("sensor-7", range(3)))
    scans = Scans(ScanLimits(most=2))
    with scans.open(lambda: table.scan(within(table, "sensor-7"))):
        with scans.open(lambda: table.scan(within(table, "sensor-7"))), pytest.raises(Overloaded, match="2 scans"):
            collect(scans, table)
        assert collect(scans, table) == [3]
    table.given.release(ALL_GROUPS)
    for _ in range(3):
        with pytest.raises(NotOwner):
            collect(scans, table)
    assert engine.snapshots == 1


async def test_a_scan_that_nobody_reads_lets_go_of_its_snapshot_when_its_time_is_over(
    table: Table, engine: CountingEngine
) -> None:
    epochs = Epochs(table)
    epochs.commit(hours("sensor-7", range(10)))
    scans = Scans(ScanLimits(page_entries=4, most=1, seconds=0.05))
    with scans.open(lambda: table.scan(within(table, "sensor-7"))) as scanned:
        pages = scans.pages(scanned, 0)
        assert len(next(pages).keys) == 4
        epochs.commit(hours("sensor-7", range(11)))
        assert engine.snapshots == 2
        await eventually(lambda: engine.snapshots == 1)
        assert collect(scans, table) == [4, 4, 3]
        with pytest.raises(DeadlineExceeded, match=r"may take 0\.05 s"):
            next(pages)
    assert engine.snapshots == 1


async def test_a_scan_that_is_over_leaves_no_timer(table: Table) -> None:
    Epochs(table).commit(hours("sensor-7", range(3)))
    scans = Scans(ScanLimits(seconds=0.01))
    assert collect(scans, table) == [3]
    with pytest.raises(ValueError, match="in the middle"), scans.open(lambda: table.scan(within(table, "sensor-7"))):
        raise ValueError("in the middle")
    await asyncio.sleep(0.03)
    assert len(read(table, "sensor-7")) == 3
