"""Scans of all keys that lose a target within a key group: they go on at another one, as of the same epoch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from keyhole import AsyncClient, Client, errors
from keyhole.errors import KeyholeError
from keyhole.model.read import KeyedEntry
from keyhole.model.selection import Selection
from keyhole.model.state import KEPT_EPOCHS, StateDescriptor
from keyhole.spark.worker.looking_up import client_of
from keyhole.spark.worker.state_reading import options_of
from keyhole.sql.live_states import LiveDataset
from keyhole.testing.fake_server import PAGE_ENTRIES, FakeServer
from tests.support.entries import APPLICATION, STATE, hourly, hours
from tests.support.proxies import fake_servers
from tests.support.waiting import LONG_SECONDS, eventually

HOURS = range(10 * PAGE_ENTRIES)
PATH = f"{APPLICATION}/{STATE}"


class Held(asyncio.Event):
    """Scans wait for it behind their first page. Lookups, which look whether it is set, don't.

    Attributes:
        reached: One has waited.
    """

    reached = False

    def is_set(self) -> bool:
        return True

    async def wait(self) -> Literal[True]:
        self.reached = True
        return await super().wait()


class Pair:
    """Two targets that have the same, and stop within each answer. A value tells its epoch."""

    def __init__(self, servers: Sequence[FakeServer], of: StateDescriptor) -> None:
        self.servers = servers
        self.copies = [server.host(of, hours("sensor-7", HOURS)) for server in servers]
        self.held = [Held() for _ in servers]
        for server, held in zip(servers, self.held, strict=True):
            server.hold, server.hold_after = held, PAGE_ENTRIES
        self.targets = ",".join(server.address for server in servers)

    async def lose(self, epochs: int = 1) -> None:
        """The one that is in the middle of an answer goes. The other one has committed since, and answers."""
        await eventually(lambda: any(held.reached for held in self.held))
        (lost,) = (at for at, held in enumerate(self.held) if held.reached)
        copy = self.copies[1 - lost]
        for _ in range(epochs):
            copy.commit()
            for key, value in hours("sensor-7", HOURS, copy.epoch).items():
                copy.put(key, value)
        self.held[1 - lost].set()
        await self.servers[lost].stop()


@asynccontextmanager
async def pair(of: StateDescriptor | None = None) -> AsyncIterator[Pair]:
    async with fake_servers("a", "b") as servers:
        yield Pair(servers, of or hourly())


def epochs_of(found: Sequence[KeyedEntry]) -> set[tuple[int, int]]:
    """Of values, and of their sources. Each entry must have come once, some from each target."""
    assert sorted(entry.map_key for entry in found) == list(HOURS)
    assert {entry.source.server for entry in found} == {"a", "b"}
    return {(entry.value.count, entry.source.epoch) for entry in found}


@pytest.mark.parametrize("asked", [{}, {"limit": len(HOURS)}, {"as_of": 1}, {"min_epoch": 1, "max_staleness": 60}])
async def test_the_rest_of_a_key_group_is_read_as_of_the_epoch_that_its_beginning_was_of(asked: dict[str, Any]) -> None:
    async with pair() as of, AsyncClient(of.targets, timeout=LONG_SECONDS) as client:
        scan = client.scan_all(APPLICATION, STATE, **asked)
        found = list(await scan.page())
        await of.lose()
        while page := await scan.page():
            found += page
        assert epochs_of(found) == {(1, 1)}


async def test_in_order_what_was_fetched_is_fetched_again() -> None:
    async with pair() as of, AsyncClient(of.targets, timeout=LONG_SECONDS) as client:

        async def read() -> list[KeyedEntry]:
            return [entry async for entry in client.scan_all(APPLICATION, STATE, ordered=True)]

        reading = asyncio.ensure_future(read())
        await of.lose()
        found = await reading
        assert [entry.map_key for entry in found] == list(HOURS)
        assert {(entry.value.count, entry.source.epoch) for entry in found} == {(2, 2)}


async def test_a_table_has_all_rows_of_one_epoch() -> None:
    async with pair() as of, AsyncClient(of.targets, timeout=LONG_SECONDS) as client:
        scan = client.scan_all(APPLICATION, STATE)
        reading = asyncio.ensure_future(scan.to_arrow())
        await eventually(lambda: scan.token is not None)
        await of.lose()
        table = await reading
        assert sorted(table["m0"].to_pylist()) == list(HOURS)
        assert set(table["count"].to_pylist()) == {1}


async def test_a_query_in_sql_has_all_rows_of_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    pages, begun = LiveDataset._pages, threading.Event()

    def noted(dataset: LiveDataset, select: Selection) -> Iterator[Sequence[KeyedEntry]]:
        for page in pages(dataset, select):
            begun.set()
            yield page

    monkeypatch.setattr(LiveDataset, "_pages", noted)
    async with pair() as of:
        with Client(of.targets, timeout=LONG_SECONDS) as client:
            asked = f"select count(*), min(count), max(count) from '{PATH}'"
            reading = asyncio.ensure_future(asyncio.to_thread(lambda: list(client.sql(asked))))
            await eventually(begun.is_set)
            await of.lose()
            assert await reading == [(len(HOURS), 1, 1)]


async def test_a_task_of_spark_has_all_rows_of_its_epoch() -> None:
    async with pair() as of:
        asked = options_of({"path": PATH, "proxy": of.targets, "timeout": str(LONG_SECONDS)})
        to_read = await asyncio.to_thread(lambda: asked.reading(asked.columns()))
        epoch, _ = await asyncio.to_thread(to_read.planned)
        reading = to_read.batches(range(to_read.descriptor.key_groups), epoch)
        try:
            batches = [await asyncio.to_thread(next, reading)]
            await of.lose()
            batches += await asyncio.to_thread(list, reading)
        finally:
            await asyncio.to_thread(client_of(of.targets, LONG_SECONDS, asked.credentials).close)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert sorted(row["m0"] for row in rows) == list(HOURS)
        assert {row["count"] for row in rows} == {1}


async def broken_off(of: Pair, epochs: int, **asked: Any) -> KeyholeError:
    """What a scan ends with that has lost its target."""
    async with AsyncClient(of.targets, timeout=LONG_SECONDS) as client:
        scan = client.scan_all(APPLICATION, STATE, **asked)
        found = list(await scan.page())
        await of.lose(epochs)
        with pytest.raises(KeyholeError) as raised:
            await scan.page()
        if not asked.get("as_of"):
            # Behind the token the rest is as of then.
            found += [entry async for entry in scan]
            assert epochs_of(found) == {(1, 1), (1 + epochs, 1 + epochs)}
        return raised.value


async def test_where_the_epoch_is_not_kept_any_more_the_scan_ends_and_goes_on_by_its_token() -> None:
    async with pair() as of:
        error = await broken_off(of, KEPT_EPOCHS)
        assert isinstance(error, errors.ServerLost)
        assert "go on behind its token" in error.message
        assert "no longer kept" in error.message
    async with pair() as of:
        # Who has asked for it by its number goes on nowhere.
        assert isinstance(await broken_off(of, KEPT_EPOCHS, as_of=1), errors.EpochGone)


async def test_what_is_as_of_no_epoch_ends_and_goes_on_by_its_token() -> None:
    async with pair() as of:
        assert isinstance(await broken_off(of, 1, consistency="latest"), errors.ServerLost)
    async with pair(hourly(updates_topic_id="updates")) as of:
        error = await broken_off(of, 1)
        assert isinstance(error, errors.ServerLost)
        assert "go on behind its token" in error.message
