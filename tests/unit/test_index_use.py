"""When a scan uses an index, and how much it looks at then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from keyhole import Predicate, field
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.encoding.storage_key import group_of
from keyhole.model.epoch import EpochStamp
from keyhole.model.read import ReadBounds
from keyhole.model.selection import Selection
from keyhole.model.state import StateKind
from keyhole.rpc.watch_requests import WatchedRange
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from keyhole.testing.clock import ManualClock
from services.state_server.read.indexed_scans import IndexedScan, IndexRule
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.read.watch_rows import entries_of, shown_rows, turns
from tests.support.entries import APPLICATION, STATE, Epochs, hourly, row

ROWS = 800


@pytest.fixture
def table() -> Iterator[Table]:
    """One key group of 800 rows: celsius goes up, count is 0 in one of 100, else 1."""
    of = hourly(kind=StateKind.VALUE, index=("celsius", "count"), key_groups=1)
    engine = MemoryEngine()
    store = IndexedStore(engine.open(APPLICATION, STATE, "topic-1"), of)
    lease = Lease(ManualClock(), seconds=3.0)
    lease.confirm()
    made = Table("server-a", of, store, lease)
    Epochs(made).commit({f"{at:04d}": row(float(at), int(at % 100 > 0)) for at in range(ROWS)})
    yield made
    made.close()
    engine.close()


def looked_at(table: Table, where: Predicate, limit: int = 0) -> tuple[int, int, list[str]]:
    """How many index entries and how many rows were looked at; and the keys that were found."""
    steps, rows = 0, 0
    select = SelectedEntries(table.descriptor, Selection(where))
    scanned = table.scan(table.codec.group_range(0), indexed=select.indexed, limit=limit)
    entries = scanned.entries

    def counted() -> Iterator[Any]:
        nonlocal steps, rows
        for key, entry in entries:
            steps += not key
            rows += bool(key)
            yield key, entry

    scanned.entries = counted()
    pages = list(Scans(ScanLimits()).pages(scanned, limit, select))
    scanned.close()
    return steps, rows, [table.codec.entry(key)[0][0] for page in pages for key in page.keys]  # type: ignore[misc]


def test_few_rows_are_looked_up_in_the_order_of_their_keys(table: Table) -> None:
    assert looked_at(table, field("count") == 0) == (1 + 8, 8, [f"{at:04d}" for at in range(0, ROWS, 100)])
    assert looked_at(table, field("celsius") > 797.0) == (1 + 2, 2, ["0798", "0799"])
    assert looked_at(table, field("celsius").is_in([700.0, 3.0, 900.0])) == (3 + 2, 2, ["0003", "0700"])
    assert looked_at(table, (field("celsius") < 300.0) & (field("count") == 0)) == (1 + 8, 8, ["0000", "0100", "0200"])
    assert looked_at(table, field("count").is_null()) == (1, 0, [])
    assert looked_at(table, field("count") < 0.5)[2] == looked_at(table, field("count") < 1)[2]
    assert looked_at(table, field("count") < 1)[:2] == (1 + 8, 8)
    assert looked_at(table, (field("count") == 0) & (field("count") == 1)) == (0, 0, [])


def test_the_first_rows_of_a_watch_are_those_of_its_range_and_behind_where_it_is(table: Table) -> None:
    indexed = table.by_index(SelectedEntries(table.descriptor, Selection(field("count") == 0)).indexed)
    snapshot, key = table.store.snapshot(), table.codec.storage_key

    def given(watched: WatchedRange | None, after: bytes = b"", by: IndexedScan | None = indexed) -> list[str]:
        found = entries_of(snapshot, 0, watched, after, by)
        rows = [of for turn in turns(found, 100, 1 << 20) for of in shown_rows(turn, None)]
        return [str(table.codec.key(of)[0]) for of, stored in rows if stored == row(float(table.codec.key(of)[0]), 0)]

    some = WatchedRange(key("0150")[2:], key("0500")[2:])
    assert given(None) == [f"{at:04d}" for at in range(0, ROWS, 100)]
    assert given(None, key("0300")) == ["0400", "0500", "0600", "0700"]
    assert given(some) == ["0200", "0300", "0400"]
    assert given(some, key("0300")) == ["0400"]
    assert given(some, key("0700")) == []
    for watched in (None, some):
        for after in (b"", key("0300"), key("0350")):
            assert given(watched, after) == given(watched, after, None)
    assert len([of for of, _ in entries_of(snapshot, 0, None, b"", indexed) if of]) == 8
    assert table.by_index(()) is None
    snapshot.close()


def test_what_stands_over_the_store_is_looked_at_too(table: Table) -> None:
    name = {at: table.codec.storage_key(at) for at in ("0000", "0150", "0500", "9999")}
    rows = {"0000": row(0.0, 5), "0150": row(0.0, 0), "0500": None, "9999": row(0.0, 0)}
    overlay = Overlay().changed((name[at], of) for at, of in rows.items())
    standing = Standing(EpochStamp(2, 1, 2000, 0), assignment_version=1)
    table.publish(OverlaySnapshot(table.store.snapshot(), overlay), frozenset({0}), standing, {}, 2)
    expected = ["0100", "0150", "0200", "0300", "0400", "0600", "0700", "9999"]
    assert looked_at(table, field("count") == 0) == (1 + 8, 8 + 2, expected)
    assert looked_at(table, field("count") == 0, limit=2)[2] == ["0100", "0150"]


def test_where_it_does_not_pay_all_rows_are_read(table: Table) -> None:
    steps, rows, found = looked_at(table, field("celsius") < 101.0)
    assert (steps, rows, len(found)) == (1 + 100, ROWS, 101)
    steps, rows, found = looked_at(table, field("celsius") < 100.0)
    assert (steps, rows, len(found)) == (1 + 100, 100, 100)
    assert looked_at(table, (field("count") == 0) | (field("sensor") == "0001"))[:2] == (0, ROWS)
    assert looked_at(table, field("count") != 1)[:2] == (0, ROWS)
    # The second index, once the first one has turned out to be of too many.
    assert looked_at(table, (field("count") == 1) & (field("celsius") < 10.0))[:2] == (1 + 100 + 1 + 10, 10)


def test_with_a_limit_one_value_is_read_in_order_and_a_range_only_where_it_is_small(table: Table) -> None:
    assert looked_at(table, field("count") == 1, limit=3)[0] == 0
    assert looked_at(table, field("count") == 1, limit=3)[2] == ["0001", "0002", "0003"]
    # The square root of 2 times 800 is 40.
    assert looked_at(table, field("celsius") < 40.0, limit=2)[0] == 1 + 40
    assert looked_at(table, field("celsius") < 40.0, limit=2)[2] == ["0000", "0001"]
    steps, _, found = looked_at(table, field("celsius") < 41.0, limit=2)
    assert (steps, found) == (1 + 40, ["0000", "0001"])
    # What is not there takes its turns, too.
    assert looked_at(table, field("celsius").is_in([at + 0.5 for at in range(300)]))[:2] == (300, 0)
    assert IndexRule().most_keys(1 << 30, 0) == 50_000


def test_the_entries_of_one_key_and_ranges_of_map_keys_are_read_without_it() -> None:
    of = hourly(index=("count",))
    engine = MemoryEngine()
    store = IndexedStore(engine.open(APPLICATION, STATE, "topic-1"), of)
    lease = Lease(ManualClock(), seconds=3.0)
    lease.confirm()
    table = Table("server-a", of, store, lease)
    Epochs(table).commit({("s", at): row(1.0, at) for at in range(20)})
    indexed = SelectedEntries(of, Selection(field("count") == 7)).indexed
    scanned = table.scan(table.codec.entry_range("s", (), ()), ReadBounds(), indexed=indexed)
    assert len(list(scanned.entries)) == 20
    scanned.close()
    group = group_of(table.codec.storage_key(("s", 0)))
    scanned = table.scan(table.codec.group_range(group), indexed=indexed)
    assert [key for key, _ in scanned.entries if key] == [table.codec.storage_key(("s", 7))]
    scanned.close()
    engine.close()
