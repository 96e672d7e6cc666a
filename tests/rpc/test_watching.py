"""Watches of one state server: rows, changes, and going on behind a token, here and at the next owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest

from keyhole import errors
from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace
from keyhole.model.state import StateDescriptor
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryKafka
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_times import RESUMABLE_MS
from services.state_server.read.watcher import GroupEpoch
from services.state_server.servicers.changelog_history import ChangelogHistory
from tests.support.entries import hourly
from tests.support.readings import descriptor, row, rows, values
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tests.support.watches import Seen, WatchReader, refused_watch


async def begun(server: RunningServer, reader: WatchReader, **fields: Any) -> asyncio.Task[None]:
    """A watch that has had all rows, and goes on until its reader knows of the key `end`."""
    task = asyncio.create_task(reader.until(server.address, lambda of: of.rows.get("end") is not None, **fields))
    await eventually(lambda: reader.snapshot_done or task.done())
    return task


async def test_a_watch_has_the_rows_and_then_each_change_with_what_was_there_before() -> None:
    async with state_server("a") as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(20))
        reader = WatchReader(of)
        task = await begun(server, reader, before=True)
        assert reader.rows == values(20)
        assert all(seen.snapshot and seen.epoch == 1 for seen in reader.seen)
        snapshot = len(reader.seen)
        await server.commit({"sensor-1": row(100.0), "sensor-2": None, "new": row(7.0)})
        await server.commit({"sensor-1": row(101.0), "end": row(1.0)})
        await task
        changes = reader.seen[snapshot:]
        assert sorted(changes[:3], key=lambda seen: seen.key) == [
            Seen("new", 7.0, 2, False, None),
            Seen("sensor-1", 100.0, 2, False, 1.0),
            Seen("sensor-2", None, 2, False, 2.0),
        ]
        assert sorted(changes[3:], key=lambda seen: seen.key) == [
            Seen("end", 1.0, 3, False, None),
            Seen("sensor-1", 101.0, 3, False, 100.0),
        ]
        assert {part.commit_time_ms for of in reader.messages for part in of.changes if part.epoch == 3} == {3000}
        # Where nothing changes it is told how far all is.
        idle = len(reader.messages)
        await reader.until(server.address, lambda of: len(of.messages) > idle + 2)
        assert reader.messages[-1].epoch == 3
        assert not any(message.changes for message in reader.messages[idle:])


async def test_watches_that_are_sent_one_and_the_same_message_get_what_each_of_them_asked_for() -> None:
    async with state_server("a") as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(5))
        plain, same, with_before = (WatchReader(of) for _ in range(3))
        tasks = [await begun(server, reader) for reader in (plain, same)]
        tasks.append(await begun(server, with_before, before=True))
        before = len(plain.seen)
        await server.commit({"sensor-1": row(100.0), "sensor-2": None})
        await server.commit({"sensor-1": row(101.0), "end": row(1.0)})
        await asyncio.gather(*tasks)
        changes = [sorted(reader.seen[before:], key=lambda seen: (seen.epoch, seen.key)) for reader in (plain, same)]
        assert changes[0] == changes[1]
        assert [(seen.key, seen.value, seen.epoch) for seen in changes[0]] == [
            ("sensor-1", 100.0, 2),
            ("sensor-2", None, 2),
            ("end", 1.0, 3),
            ("sensor-1", 101.0, 3),
        ]
        assert {seen.before for seen in with_before.seen[before:]} == {None, 1.0, 2.0, 100.0}


async def test_a_watch_of_keys_has_no_others_and_of_a_map_all_entries_of_a_key() -> None:
    async with state_server("a") as server:
        of = await server.own_new(hourly())
        await server.commit({("s1", 1): row(1.0), ("s1", 2): row(2.0), ("s2", 1): row(3.0), ("s3", 1): row(4.0)})
        reader = WatchReader(of)
        task = asyncio.create_task(reader.until(server.address, lambda of: ("s2", 9) in of.rows, "s2", ("s1", 2)))
        await eventually(lambda: reader.snapshot_done)
        assert reader.rows == {("s1", 2): 2.0, ("s2", 1): 3.0}
        await server.commit({("s1", 1): row(8.0), ("s1", 2): row(9.0), ("s3", 1): row(8.0)})
        await server.commit({("s2", 1): None, ("s2", 9): row(9.0)})
        await task
        assert reader.rows == {("s1", 2): 9.0, ("s2", 9): 9.0}
        # What changes of other keys meanwhile moves its token, too.
        await server.commit({("s3", 1): row(1.0)})
        await reader.until(server.address, lambda of: of.messages[-1].epoch == 4, "s2", ("s1", 2))
        assert isinstance(await refused_watch(reader, server.address, "s2"), errors.MalformedRequest)
        assert isinstance(await refused_watch(WatchReader(of), server.address, 7), errors.KeyMismatch)


async def message_by_message(reader: WatchReader, server: RunningServer, done: Callable[[], bool]) -> None:
    """Leaves after each message, and goes on, until it is done."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done():
            taken = len(reader.messages)
            await reader.until(server.address, lambda of: len(of.messages) > taken)  # noqa: B023 - it is over by then


async def test_a_watch_goes_on_behind_its_token_from_memory_and_from_the_changelog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.state_server.servicers.watches.WatchLimits", lambda: WatchLimits(page_changes=3))
    kafka, engine = MemoryKafka(), MemoryEngine()
    async with state_server("a", kafka) as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(40))
        reader = WatchReader(of)
        while not reader.snapshot_done:  # left after each message, the rows half-way through included
            taken = len(reader.messages)
            await reader.until(server.address, lambda of, taken=taken: len(of.messages) > taken)
            if taken == 10:
                await server.commit(rows(40, 100.0))
                await server.commit({"sensor-3": None, "sensor-4": row(104.5)})
        expected = values(40, 100.0) | {"sensor-4": 104.5}
        del expected["sensor-3"]
        # Of what was given before the change, the change; of the rest, what was there by then.
        await message_by_message(reader, server, lambda: reader.rows == expected)
        assert any(seen.snapshot and seen.epoch > 1 for seen in reader.seen)
        assert any(not seen.snapshot for seen in reader.seen)
        await server.commit(rows(30, 200.0))
        given = len(reader.seen)
        await message_by_message(reader, server, lambda: len(reader.seen) >= given + 30)
        assert sorted((seen.key, seen.value) for seen in reader.seen[given:]) == sorted(values(30, 200.0).items())
        await server.commit(rows(30, 300.0))
        # The next owner has none of it in memory.
        async with state_server("b", kafka, engine) as successor:
            await successor.succeed(server)
            await successor.commit({"end": row(1.0), "sensor-0": row(0.5)})
            given = len(reader.seen)
            await message_by_message(reader, successor, lambda: len(reader.seen) >= given + 32)
            assert [seen.epoch for seen in reader.seen[given:]].count(5) == 30
            assert reader.rows == expected | values(30, 300.0) | {"end": 1.0, "sensor-0": 0.5}
            keys = [(seen.key, seen.epoch) for seen in reader.seen]
            assert len(set(keys)) == len(keys)  # nothing twice
            assert isinstance(await refused_watch(WatchReader(of, "x"), successor.address), errors.MalformedRequest)
            other = await successor.own_new(descriptor("other"))
            await refused_of_another_state(reader, other, successor)


async def refused_of_another_state(reader: WatchReader, other: StateDescriptor, server: RunningServer) -> None:
    assert isinstance(await refused_watch(WatchReader(other, reader.token), server.address), errors.StaleDescriptor)


async def test_a_token_that_is_too_old_is_refused_where_something_has_changed_and_is_not_in_memory() -> None:
    kafka = MemoryKafka()
    async with state_server("a", kafka) as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(3))
        reader = WatchReader(of)
        await reader.until(server.address, lambda of: of.snapshot_done)
        old = WatchReader(of, reader.token)
        await server.commit(rows(3, 1.0))
        async with state_server("b", kafka) as successor:
            successor.clock.ahead_seconds = RESUMABLE_MS / 1000 + 5
            await successor.succeed(server)
            refused = await refused_watch(reader, successor.address)
            assert isinstance(refused, errors.ResumeGone)
            assert int(refused.facts["age_seconds"]) >= RESUMABLE_MS // 1000
            fresh = WatchReader(of)
            await fresh.until(successor.address, lambda of: of.snapshot_done)
            # Nothing has changed since: however old it is, nothing is missed.
            successor.clock.ahead_seconds *= 2
            await fresh.until(successor.address, lambda of: len(of.messages) > 5)
            await successor.commit({"end": row(1.0)})
            await fresh.until(successor.address, lambda of: "end" in of.rows)
        await old.until(server.address, lambda of: len(of.rows) == 3)  # in memory where it was


async def test_a_token_that_is_ahead_of_this_server_is_refused_before_anything_is_given() -> None:
    async with state_server("a") as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(40))
        for below in (None, b"\0\0half-way"):  # of one key group all rows were given, or some; of the others none
            ahead = {0: WatchMark(1_000, 9, 0, below)}
            place = WatchPlace(dict.fromkeys(range(of.key_groups), NOT_BEGUN) | ahead, 1)
            reader = WatchReader(of, place.token(of, 0))
            assert isinstance(await refused_watch(reader, server.address), errors.NotReady)
            assert reader.seen == []


async def test_a_watch_ends_where_its_key_groups_or_its_state_go() -> None:
    async with state_server("a") as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(3))
        ended = [asyncio.create_task(refused_watch(WatchReader(of), server.address)) for _ in range(2)]
        started = WatchReader(of)
        await started.until(server.address, lambda of: of.snapshot_done)
        await server._speaker.take(of, owned=range(8), followed=range(8, 16))
        assert {type(error) for error in await asyncio.gather(*ended)} == {errors.NotOwner}
        await server.evolve(of)
        dropped = WatchReader(of)
        task = asyncio.create_task(refused_watch(dropped, server.address))
        await eventually(lambda: dropped.snapshot_done)
        await server.retire()
        assert isinstance(await task, errors.UnknownApplication)


async def test_what_is_too_much_of_an_epoch_to_be_kept_in_memory_is_read_back_from_the_changelog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.state_server.write.watched_write.MOST_BYTES", 1_000)
    read_back, epochs = list[GroupEpoch](), ChangelogHistory.epochs

    async def noted(self: ChangelogHistory, *arguments: Any) -> AsyncGenerator[GroupEpoch]:
        async for epoch in epochs(self, *arguments):
            read_back.append(epoch)
            yield epoch

    monkeypatch.setattr(ChangelogHistory, "epochs", noted)
    async with state_server("a") as server:
        of = await server.own_new(descriptor())
        await server.commit(rows(3))
        reader = WatchReader(of)
        task = await begun(server, reader)
        assert not read_back
        await server.commit(rows(100, 1.0))
        await server.commit({"end": row(1.0)})
        await task
        assert reader.rows == values(100, 1.0) | {"end": 1.0}
        seen = [(change.key, change.epoch) for change in reader.seen if not change.snapshot]
        assert len(set(seen)) == len(seen) == 101
        assert read_back


async def test_what_has_expired_comes_as_a_deletion_when_it_is_removed() -> None:
    async with state_server("a") as server:
        of = await server.own_new(msgspec.structs.replace(descriptor(), ttl_ms=1500))
        server.clock.ahead_seconds = 0.0
        await server.commit(rows(5))
        reader = WatchReader(of)
        task = await begun(server, reader, before=True)
        for _ in range(3):
            await server.commit({"kept": row(1.0)})
        await server.commit({"end": row(1.0)})
        await task
        assert not set(values(5)) & reader.rows.keys()
        assert reader.rows["end"] == 1.0
