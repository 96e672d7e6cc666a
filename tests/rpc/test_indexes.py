"""Indexes on running servers: kept by epochs, on standbys, after restarts; added to a state that lives, and removed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from keyhole import AsyncClient, field
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.model.predicates import Predicate
from keyhole.model.state import StateDescriptor
from keyhole.stores.base import StoreLimits
from keyhole.stores.index_entries import rows_counted
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.testing.changelog import MemoryKafka
from services.state_server.read import indexed_scans
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.table import Table
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours, row
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually

BY_COUNT = ("count",)


def table_of(server: RunningServer) -> Table:
    return server.server._registry.tables[APPLICATION, STATE]


def is_whole(server: RunningServer, of: StateDescriptor) -> bool:
    """Whether each index is built in all key groups that were ever written to."""
    snapshot = table_of(server).store.snapshot()
    try:
        counts = [
            rows_counted(snapshot, group, index.id) for group in snapshot.positions() for index in indexed_fields(of)
        ]
    finally:
        snapshot.close()
    return None not in counts


async def found(server: RunningServer, where: Predicate, **how: Any) -> list[Any]:
    """The keys, sorted."""
    async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
        entries = [entry async for entry in client.scan_all(APPLICATION, STATE, where=where, **how)]
    return sorted((entry.key, entry.map_key) for entry in entries)


async def test_epochs_standbys_and_restarts_keep_an_index_and_scans_use_it(tmp_path: Path, monkeypatch: Any) -> None:
    kafka, of = MemoryKafka(), hourly(index=BY_COUNT)
    rare = field("count") == 7
    async with state_server("server-a", kafka, LmdbEngine(StoreLimits(tmp_path / "a", 1 << 30))) as owner:
        await owner.own(of)
        table_of(owner).index_rule = IndexRule(1, 1000)
        await owner.commit({**hours("sensor-1", range(30)), **hours("sensor-2", [5], count=7)})
        looked_up: list[bytes] = []
        rows = indexed_scans._rows

        def counted(snapshot: Any, keys: Any) -> Any:
            return rows(snapshot, (looked_up.append(key) or key for key in keys))  # type: ignore[func-returns-value]

        monkeypatch.setattr(indexed_scans, "_rows", counted)
        assert await found(owner, rare) == [("sensor-2", 5)]
        assert len(looked_up) == 1
        # Rows that take another value, come, and go.
        await owner.commit({**hours("sensor-1", [3, 4], count=7), ("sensor-2", 5): None})  # type: ignore[dict-item]
        assert await found(owner, rare) == [("sensor-1", 3), ("sensor-1", 4)]
        assert await found(owner, (field("count") > 1) & (field("celsius") < 4.0)) == [("sensor-1", 3)]
        assert await found(owner, rare, as_of=1) == [("sensor-2", 5)]
        assert len(looked_up) == 1 + 2 + 2 + 1
        async with state_server("server-b", kafka) as standby:
            await standby.follow(owner.made_topic(of))
            await eventually(lambda: len(table_of(standby).standby.groups) == KEY_GROUPS)
            table_of(standby).index_rule = IndexRule(1, 1000)
            assert is_whole(standby, of)
            assert await found(standby, rare) == [("sensor-1", 3), ("sensor-1", 4)]
            assert len(looked_up) == 6 + 2
    # From its own store, and from the changelog alone.
    for name, engine in (("server-a", LmdbEngine(StoreLimits(tmp_path / "a", 1 << 30))), ("server-c", None)):
        async with state_server(name, kafka, engine) as again:
            await again.succeed(owner)
            table_of(again).index_rule = IndexRule(1, 1000)
            assert is_whole(again, of)
            before = len(looked_up)
            assert await found(again, rare) == [("sensor-1", 3), ("sensor-1", 4)]
            assert len(looked_up) == before + 2


async def test_the_first_rows_of_a_watch_are_looked_up_by_an_index_and_changes_come_as_ever() -> None:
    rare = field("count") == 7
    async with state_server("server-a") as server, AsyncClient(server.address, timeout=LONG_SECONDS) as client:
        await server.own(hourly(index=BY_COUNT))
        await server.commit({**hours("sensor-1", range(600)), **hours("sensor-2", [5, 6], count=7)})
        table = table_of(server)
        table.index_rule = IndexRule(1, 1000)
        for within in ({}, {"prefix": "sensor-2"}, {"start": "sensor-2", "stop": "sensor-3"}):
            used = table.reads.indexed["count"]
            async with asyncio.timeout(LONG_SECONDS), client.watch(APPLICATION, STATE, where=rare, **within) as watch:
                events = aiter(watch)
                assert {(await anext(events)).map_key for _ in range(2)} == {5, 6}
                assert table.reads.indexed["count"] > used
                # Of what comes then no index is asked.
                await server.commit({("sensor-2", 5): row(5.0, 1), ("sensor-2", 9): row(9.0, 7)})
                changes = [await anext(events) for _ in range(2)]
            assert {(change.map_key, change.value is None) for change in changes} == {(5, True), (9, False)}
            await server.commit({("sensor-2", 5): row(5.0, 7), ("sensor-2", 9): None})  # type: ignore[dict-item]
        # Of some keys there are fewer entries than it would find.
        used = table.reads.indexed["count"]
        async with asyncio.timeout(LONG_SECONDS), client.watch(APPLICATION, STATE, "sensor-2", where=rare) as watch:
            events = aiter(watch)
            assert {(await anext(events)).map_key for _ in range(2)} == {5, 6}
        assert table.reads.indexed["count"] == used


async def test_an_index_is_added_to_a_state_that_lives_and_removed_and_scans_are_right_meanwhile() -> None:
    async with state_server("server-a") as server:
        await server.own(hourly())
        await server.commit({**hours("sensor-1", range(30)), **hours("sensor-2", [5], count=7)})
        of = server.made_topic(hourly(index=BY_COUNT))
        await server.evolve(of)
        assert await found(server, field("count") == 7) == [("sensor-2", 5)]
        await server.commit(hours("sensor-3", range(3), count=7))
        table_of(server).index_rule = IndexRule(1, 1000)
        await eventually(lambda: is_whole(server, of))
        await server.commit(hours("sensor-3", [1], count=8))
        expected = [("sensor-2", 5), ("sensor-3", 0), ("sensor-3", 2)]
        assert await found(server, field("count") == 7) == expected
        # Another one in its place, of a field whose type has become wider.
        await server.evolve(msgspec.structs.replace(of, index=("celsius",)))
        assert await found(server, field("count") == 7) == expected
        await eventually(lambda: is_whole(server, msgspec.structs.replace(of, index=("celsius",))))
        await server.evolve(msgspec.structs.replace(of, index=()))
        assert await found(server, field("count") == 7) == expected
        await eventually(lambda: not table_of(server).store.has_entries)  # type: ignore[attr-defined]
        assert table_of(server).store.size().entries == 34
