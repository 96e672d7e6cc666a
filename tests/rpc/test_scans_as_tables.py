"""Scans as Arrow tables, batches and data frames: of both clients and of handles, with what is left when one fails."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib.util
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from keyhole import AsyncClient, Client
from keyhole.client.arrow_tables import EntryTables
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.errors import InvalidConfiguration, ServerLost, StaleDescriptor, Unsupported, ValueMismatch
from keyhole.model.read import KeyedEntry
from keyhole.model.state import KeyColumn, KeyType, StateKind, ValueField, ValueSchema
from keyhole.testing.fake_server import PAGE_ENTRIES, FakeServer
from keyhole.testing.served_states import ServedStates
from tests.support.entries import APPLICATION, STATE, hourly, hours, row
from tests.support.proxies import fake_servers
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

_AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
_SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("day", pa.date32()),
        ("orders", pa.int64()),
        ("paid", pa.bool_()),
        ("spent", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
_ROWS = [
    {
        "customer": f"c{number % 3}",
        "day": dt.date(2026, 11, 1 + number),
        "orders": 2**53 + 1 if number == 1 else None if number == 2 else number,
        "paid": None if number == 3 else number % 2 == 0,
        "spent": Decimal(number) / 4,
        "at": _AT + dt.timedelta(minutes=number),
        "tags": ["x"] * number,
    }
    for number in range(7)
]


@dataclass
class Spent:
    """Less than a row has, and of another type."""

    spent: Any


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    with ServedStates() as served, Client(served.address, timeout=LONG_SECONDS) as client:
        served.write("shop/days", _ROWS, key="customer", map_key="day", schema=_SCHEMA)
        served.write("shop/twice", [{"k": "a", "v": 1}], key="k")
        yield client


def test_a_scan_becomes_what_pandas_and_polars_have_with_nothing_lost(served: Client) -> None:
    days = served.state("shop/days", value=Spent)
    table = days.scan_all(ordered=True).to_arrow()
    assert table.schema == _SCHEMA
    in_order = sorted(_ROWS, key=lambda row: (row["customer"], row["day"]))
    assert table.to_pylist() == in_order
    frame = days.scan_all(ordered=True).to_pandas()
    assert (str(frame.orders.dtype), str(frame.paid.dtype)) == ("Int64", "boolean")
    assert frame.orders.dropna().tolist() == [of["orders"] for of in in_order if of["orders"] is not None]
    assert frame["at"].tolist() == [pd.Timestamp(of["at"]) for of in in_order]
    nested = pa.schema([("k", pa.string()), ("of", pa.map_(pa.string(), pa.int64())), ("all", pa.list_(pa.int64()))])
    with ServedStates() as more, Client(more.address, timeout=LONG_SECONDS) as client:
        more.write(
            "a/b", [{"k": "a", "of": {"x": 2**53 + 1, "y": None}, "all": [2**53 + 1, None]}], key="k", schema=nested
        )
        (one,) = client.scan_all("a", "b").to_pandas().to_dict("records")
    assert (one["of"], list(one["all"])) == ([("x", 2**53 + 1), ("y", None)], [2**53 + 1, None])
    exact = days.scan_all().to_pandas(types_mapper=pd.ArrowDtype)
    assert exact.spent.dtype == pd.ArrowDtype(pa.decimal128(10, 2))
    in_polars = days.scan_all(ordered=True).to_polars()
    assert in_polars.to_dicts() == in_order
    assert in_polars.schema["orders"] == pl.Int64
    assert served.sql("select orders from 'shop/days' where orders is not null").to_polars().height == 6


def test_batches_of_a_scan_that_is_closed_before_its_end_are_not_taken_for_all_of_it(served: Client) -> None:
    with served.state("shop/days").scan_all() as scan:
        batches = scan.arrow_batches()
    with pytest.raises(Unsupported, match="the scan was closed"):
        batches.read_all()
    with served.state("shop/days").scan_all() as scan:
        batches = scan.arrow_batches()
        assert batches.read_all().num_rows == len(_ROWS)
    assert scan.done
    with pytest.raises(StopIteration):
        batches.read_next_batch()


def test_the_entries_of_one_key_are_a_table_with_its_key(served: Client) -> None:
    of_one = [of for of in _ROWS if of["customer"] == "c1"]
    for days in (served.state("shop/days"), served.state("shop/days", value=Spent)):
        assert days.scan("c1").to_arrow().to_pylist() == of_one
        assert days.scan(("c1",), descending=True, limit=1, fields=["spent"]).to_arrow().to_pylist() == [
            {name: of_one[-1][name] for name in ("customer", "day", "spent")}
        ]
        assert days.scan("c1", keys_only=True).to_polars().columns == ["customer", "day"]
        assert days.scan("nobody").to_pandas().shape == (0, 7)
    found = served.scan("shop", "days", "c1")
    assert "descriptor" not in repr(found)
    with pytest.raises(Unsupported, match="not given by a scan"):
        ScannedEntries(found.entries, found.source).to_arrow()


def test_what_is_missing_is_told_by_its_extra(served: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    find, lacking = importlib.util.find_spec, "pyarrow"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == lacking else find(name))
    for ask in (
        lambda: served.scan_all("shop", "days").to_arrow(),
        lambda: served.scan_all("shop", "days").arrow_batches(),
        lambda: served.scan("shop", "days", "c1").to_polars(),
    ):
        with pytest.raises(InvalidConfiguration, match=r"needs pyarrow: install keyhole-spark\[arrow\]"):
            ask()
    lacking = "pandas"
    with pytest.raises(InvalidConfiguration, match=r"to_pandas needs pandas: install keyhole-spark\[pandas\]"):
        served.scan_all("shop", "days").to_pandas()
    lacking = "polars"
    with pytest.raises(InvalidConfiguration, match=r"to_polars needs polars: install keyhole-spark\[polars\]"):
        served.scan_all("shop", "days").to_polars()


@pytest.fixture
async def fake() -> AsyncIterator[tuple[FakeServer, AsyncClient]]:
    async with fake_servers("a") as (fake,), AsyncClient(fake.address, timeout=PATIENCE_SECONDS) as client:
        yield fake, client


async def test_batches_come_as_they_are_asked_for_and_the_token_is_behind_the_last_one(
    fake: tuple[FakeServer, AsyncClient],
) -> None:
    server, client = fake
    server.host(hourly(), hours("sensor-1", range(20)) | hours("sensor-2", range(20)))
    everything = await client.scan_all(APPLICATION, STATE).to_arrow()
    assert everything.num_rows == 40
    scan = client.scan_all(APPLICATION, STATE)
    async with scan:
        batches = scan.arrow_batches()
        first = await anext(batches)
        assert first.num_rows == PAGE_ENTRIES
        assert first.schema == everything.schema
        # Loops and tables may take turns.
        assert (await anext(aiter(scan))).value.celsius == everything["celsius"][PAGE_ENTRIES].as_py()
        token = scan.token
        rest = await scan.to_arrow()
        assert rest.equals(everything.slice(PAGE_ENTRIES + 1))
        assert (scan.done, await scan.to_arrow()) == (True, everything.slice(40))
        await batches.aclose()
    assert (await client.scan_all(APPLICATION, STATE, after=token).to_arrow()).equals(rest)
    left = client.scan_all(APPLICATION, STATE, limit=5)
    assert (await left.to_arrow()).num_rows == 5
    assert (await client.scan_all(APPLICATION, STATE, after=left.token).to_arrow()).num_rows == 35
    with pytest.raises(Unsupported, match="the scan was closed"):
        await scan.to_arrow()
    never = client.scan_all(APPLICATION, STATE)
    await never.close()
    with pytest.raises(Unsupported, match="the scan was closed"):
        await anext(never.arrow_batches())
    with Client(server.address, timeout=PATIENCE_SECONDS) as blocking:
        with blocking.scan_all(APPLICATION, STATE) as threaded:
            reader = await asyncio.to_thread(threaded.arrow_batches)
            assert (await asyncio.to_thread(reader.read_next_batch)).equals(first)
            assert threaded.token is not None
            after = await asyncio.to_thread(threaded.to_arrow)
        assert after.equals(everything.slice(PAGE_ENTRIES))


async def test_a_table_that_fails_leaves_its_scan_where_it_was(fake: tuple[FakeServer, AsyncClient]) -> None:
    server, client = fake
    rows = hours("sensor-1", range(20))
    server.host(hourly(), rows)
    scan = client.scan_all(APPLICATION, STATE)
    given = [await anext(aiter(scan)), await anext(aiter(scan))]
    token = scan.token
    server.hold_after = 2 * PAGE_ENTRIES
    server.hold.clear()
    asked = asyncio.ensure_future(scan.to_arrow())
    await eventually(lambda: scan.token != token)
    with Client(server.address, timeout=PATIENCE_SECONDS) as blocking:
        threaded = blocking.scan_all(APPLICATION, STATE, after=token)
        waiting = asyncio.ensure_future(asyncio.to_thread(threaded.to_arrow))
        await eventually(lambda: threaded.token != token)
        # Also one that is cancelled.
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert scan.token == token
        again = asyncio.ensure_future(scan.to_arrow())
        await eventually(lambda: scan.token != token)
        port = server.port
        await server.stop()
        started = FakeServer("b", port)
        # The epoch of which the first entries were is not kept.
        started.host(hourly(), rows).epoch = 9
        await started.start()
        try:
            for one in (again, waiting):
                with pytest.raises(ServerLost):
                    await one
            assert (scan.token, threaded.token) == (token, token)
            table = await scan.to_arrow()
            already = {entry.map_key for entry in given}
            assert table["m0"].to_pylist() == [number for number in range(20) if number not in already]
            assert (await asyncio.to_thread(threaded.to_arrow)).equals(table)
        finally:
            await started.stop()


async def test_kinds_without_a_value_per_key_have_their_columns(fake: tuple[FakeServer, AsyncClient]) -> None:
    server, client = fake
    rules = hourly(kind=StateKind.BROADCAST, key_groups=1)
    server.host(rules, {"a": row(1.0), "b": row(2.0)})
    wanted = [{"sensor": "a", "celsius": 1.0, "count": 1}, {"sensor": "b", "celsius": 2.0, "count": 1}]
    assert (await client.scan_all(APPLICATION, STATE).to_arrow()).to_pylist() == wanted
    assert (await client.scan(APPLICATION, STATE, ())).to_arrow().to_pylist() == wanted
    log = hourly(kind=StateKind.LIST, state="log")
    server.host(log, {("a", 3): row(math.nan)})
    assert repr((await client.scan(APPLICATION, "log", "a")).to_arrow().to_pylist()) == (
        "[{'sensor': 'a', 'position': 3, 'celsius': nan, 'count': 1}]"
    )
    twice = hourly(state="twice", value=ValueSchema(1, (ValueField("sensor", "double"), ValueField("count", "bigint"))))
    server.host(twice, hours("a", range(2)))
    with pytest.raises(ValueMismatch, match="has sensor in its key and in its value"):
        await client.scan_all(APPLICATION, "twice").to_arrow()
    assert (await client.scan_all(APPLICATION, "twice", fields=["count"]).to_arrow()).column_names == [
        "sensor",
        "m0",
        "count",
    ]
    assert (await client.scan_all(APPLICATION, "twice", keys_only=True).to_arrow()).num_columns == 2


async def test_a_schema_that_changes_while_a_state_is_read(fake: tuple[FakeServer, AsyncClient]) -> None:
    server, client = fake
    server.host(hourly(), hours("a", [1]))
    (entry,) = [entry async for entry in client.scan_all(APPLICATION, STATE)]
    key = (KeyColumn("sensor", KeyType.STRING),)
    before = hourly(key=key, value=ValueSchema(1, (ValueField("celsius", "float"), ValueField("gone", "int"))))
    tables = EntryTables(before)
    # `count` was added since, and `gone` dropped.
    batch = tables.batch([entry, KeyedEntry("a", 2, None, entry.source)])
    assert batch.to_pylist() == [
        {"sensor": "a", "m0": 1, "celsius": 1.0, "gone": None},
        {"sensor": "a", "m0": 2, "celsius": None, "gone": None},
    ]
    narrow = msgspec.structs.replace(before, value=ValueSchema(1, (ValueField("celsius", "boolean"),)))
    with pytest.raises(StaleDescriptor, match="schema of state weather/hourly was changed") as refused:
        EntryTables(narrow).batch([entry])
    assert refused.value.__cause__ is None
