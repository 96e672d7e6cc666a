"""Mirrors by the client library: what they show, what they ask a server for, and what they do where a watch ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from keyhole import Answer, AsyncClient, Client, errors, field
from keyhole.client import AsyncMirror, Mirror
from keyhole.client.mirror_copy import MirrorCopy
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.model.read import Role
from keyhole.model.state import StateKind, TtlClock, ValueField, ValueSchema
from keyhole.rpc import forked
from keyhole.testing.changelog import MemoryKafka
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watched_changes import Changes
from services.state_server.read.watcher import Watcher
from tests.support.entries import hourly
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import descriptor, row, rows, values
from tests.support.refusals import raised_at_deadline
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually

NAME = ("weather", "readings")
PATH = "/".join(NAME)


def shown(mirror: AsyncMirror[Any]) -> dict[Any, float]:
    return {entry.key: entry.value.celsius for entry in mirror}


@dataclass
class Reading:
    celsius: float


async def test_a_mirror_answers_as_lookups_do_and_asks_a_server_where_that_is_wanted() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(descriptor())
        await server.commit(rows(20))
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        unused = client.mirror(PATH)
        with pytest.raises(errors.Unsupported, match="has not begun"):
            unused.get("sensor-1")
        mirror = await stack.enter_async_context(client.mirror(PATH))
        assert (len(mirror), mirror.epoch, bool(mirror)) == (20, 1, True)
        assert shown(mirror) == values(20)
        answer, looked_up = mirror.get("sensor-7"), await client.get("weather", "readings", "sensor-7")
        assert type(answer) is Answer
        assert (answer.found, answer.value, answer.epoch) == (True, looked_up.value, looked_up.epoch)
        assert answer.commit_time == looked_up.commit_time is not None
        assert (answer.role, answer.server) == (Role.MIRROR, "")
        assert answer.source.as_of is not None
        assert 0 <= mirror.staleness_seconds < LONG_SECONDS
        assert 0 <= mirror.age_seconds < LONG_SECONDS
        absent = mirror.get("nothing")
        assert (absent.found, absent.value, absent.epoch) == (False, None, 1)
        with pytest.raises(errors.Unsupported, match="no entries to scan"):
            mirror.scan("sensor-1")
        assert ("sensor-1" in mirror, "nothing" in mirror) == (True, False)
        for wrong in (7, None, ("sensor-1", 1)):
            with pytest.raises((errors.KeyMismatch, errors.NullKey)):
                mirror.get(wrong)
        with pytest.raises(errors.MalformedRequest, match="characters"):
            mirror.get_many("sensor-1")

        # What is committed is there at once, and deletions are.
        await server.commit({"sensor-1": None, "sensor-2": row(9.0)})
        await mirror.wait_for(2)
        assert [answer.found for answer in mirror.get_many(["sensor-1", "sensor-2", "sensor-3"])] == [False, True, True]
        assert [answer.epoch for answer in mirror.get_many(["sensor-1", "sensor-2", "sensor-3"])] == [2, 2, 2]
        assert len(mirror) == 19

        # By the copy where it is good enough, else by a server.
        assert (await mirror.fetch("sensor-2", max_staleness=LONG_SECONDS, min_epoch=2)).role is Role.MIRROR
        assert (await mirror.fetch("sensor-2", stale="never")).role is Role.OWNER
        await raised_at_deadline(
            lambda seconds: mirror.fetch("sensor-2", max_staleness=0.001, timeout=seconds),
            0.2,
            errors.TooStale,
            "server a",
        )
        both = await mirror.fetch_many(["sensor-1", "sensor-2"], as_of=1)
        assert [(of.found, of.role, of.epoch) for of in both] == [(True, Role.OWNER, 1)] * 2
        await raised_at_deadline(
            lambda seconds: mirror.fetch("sensor-2", min_epoch=3, timeout=seconds), 0.2, errors.EpochNotReached, ""
        )
        with pytest.raises(errors.MalformedRequest, match="epochs are whole numbers"):
            await mirror.wait_for("3")  # type: ignore[arg-type]
        with pytest.raises(errors.EpochNotReached, match="has not reached epoch 3"):
            await mirror.wait_for(3, timeout=0.05)
        with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
            await mirror.fetch("sensor-2", limit=3)  # type: ignore[call-arg]
        with pytest.raises(errors.Unsupported, match="begins once"):
            await mirror.__aenter__()

        # Of some keys, with values of a type.
        some = client.state(PATH, value=Reading).mirror("sensor-2", "sensor-99")
        async with some:
            assert (len(some), some.get("sensor-2").value, some.get("sensor-99").found) == (1, Reading(9.0), False)
            assert [entry.value for entry in some] == [Reading(9.0)]
            with pytest.raises(errors.MalformedRequest, match="none of them"):
                some.get("sensor-3")
            assert (await some.fetch("sensor-3")).value == Reading(3.0)
            await server.commit({"sensor-99": row(1.0), "sensor-3": row(1.0)})
            await some.wait_for(3)
            assert (len(some), some.get("sensor-99").value) == (2, Reading(1.0))
        with pytest.raises(errors.ClientClosed, match="is closed"):
            some.get("sensor-2")
        await some.close()
        await client.close()
        await eventually(lambda: "not there" in repr(mirror))
        with pytest.raises(errors.ClientClosed):
            mirror.get("sensor-1")


async def test_a_mirror_that_can_not_be_says_why_when_it_begins() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(descriptor())
        await server.commit(rows(20))
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))

        async def refused(*keys: Any, path: str = PATH, **options: Any) -> errors.KeyholeError:
            with pytest.raises(errors.KeyholeError) as caught:
                async with client.mirror(path, *keys, **options):
                    pass
            return caught.value

        assert isinstance(await refused(path="weather/nothing"), errors.UnknownState)
        assert isinstance(await refused(path="weather"), errors.InvalidConfiguration)
        assert isinstance(await refused(7), errors.KeyMismatch)
        assert isinstance(await refused(max_entries=0), errors.MalformedRequest)
        assert isinstance(await refused(timeout=0), errors.MalformedRequest)
        large = await refused(max_entries=19)
        assert isinstance(large, errors.TooLarge)
        assert (large.facts["bound"], large.facts["limit"]) == ("max_entries", "19")
        assert (await refused(max_bytes=2_000)).facts["bound"] == "max_bytes"
        with pytest.raises(TypeError, match="unexpected keyword argument 'after'"):
            client.mirror(PATH, after="")  # type: ignore[call-arg]
        with pytest.raises(errors.Unsupported):
            client.session().state(PATH).mirror()
        snapshot = await client.snapshot(PATH)
        with pytest.raises(errors.Unsupported):
            snapshot.state(PATH).mirror()

        # One that grows beyond its bounds says so to whoever reads it, and lets go of what it has.
        async with client.mirror(PATH, max_entries=20) as mirror:
            await server.commit({"one-more": row(1.0)})
            with pytest.raises(errors.TooLarge, match="max_entries=20"):
                await mirror.wait_for(2)
            for _ in range(2):
                with pytest.raises(errors.TooLarge, match="larger max_entries"):
                    mirror.get("sensor-1")
        # So does one whose state goes.
        async with client.mirror(PATH) as mirror:
            await server.retire()
            with pytest.raises((errors.UnknownApplication, errors.UnknownState)):
                await mirror.wait_for(99)


async def test_a_mirror_belongs_to_the_event_loop_that_began_it_and_reads_rows_of_a_newer_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        of = await server.own_new(descriptor())
        await server.commit(rows(3))
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        async with client.mirror(PATH) as mirror:

            async def elsewhere() -> None:
                assert mirror.get("sensor-1").value.celsius == 1.0
                with pytest.raises(errors.Unsupported, match="belongs to the event loop"):
                    await mirror.close()
                with pytest.raises(errors.Unsupported):
                    async with client.mirror(PATH):
                        pass

            await asyncio.to_thread(asyncio.run, elsewhere())
            with monkeypatch.context() as child:
                child.setattr(forked.process, "cut_off", True)
                with pytest.raises(errors.Unsupported, match="was forked"):
                    mirror.get("sensor-1")
                await mirror.close()
            assert mirror.get("sensor-1")
            fields = (*of.value.fields, ValueField("place", "string"))
            newer = msgspec.structs.replace(of, value=ValueSchema(2, fields), earlier=(of.value,))
            await server.evolve(newer)
            await server.commit({"sensor-1": msgspec.msgpack.encode([2, 5.0, 1, "roof"])})
            await mirror.wait_for(2)
            one, two = mirror.get("sensor-1").value, mirror.get("sensor-2").value
            assert (one.celsius, one.place, two.celsius, two.place) == (5.0, "roof", 2.0, None)
        # Left to an event loop that ends, it says so.
        left: list[AsyncMirror[Any]] = []

        async def leave() -> None:
            left.append(AsyncClient(proxy.address, timeout=LONG_SECONDS).mirror(PATH))
            await left[0].__aenter__()

        await asyncio.to_thread(asyncio.run, leave())
        with pytest.raises(errors.ClientClosed, match="event loop"):
            left[0].get("sensor-1")
        await left[0].close()


async def test_a_mirror_of_a_prefix_or_a_predicate_has_what_is_of_it() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(descriptor())
        await server.commit({"a1": row(1.0), "a2": row(40.0), "b1": row(50.0)})
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        by_prefix = await stack.enter_async_context(client.mirror(PATH, prefix="a"))
        hot = await stack.enter_async_context(client.mirror(PATH, where=field("celsius") > 30))
        both = await stack.enter_async_context(
            client.state(PATH, value=Reading).mirror(start="a2", where=field("celsius") > 30)
        )
        assert shown(by_prefix) == {"a1": 1.0, "a2": 40.0}
        assert shown(hot) == shown(both) == {"a2": 40.0, "b1": 50.0}
        await server.commit({"a1": row(31.0), "a2": row(2.0), "a3": row(3.0), "b2": row(60.0), "b1": None})
        for mirror in (by_prefix, hot, both):
            await mirror.wait_for(2)
        assert shown(by_prefix) == {"a1": 31.0, "a2": 2.0, "a3": 3.0}
        assert shown(hot) == {"a1": 31.0, "b2": 60.0}
        assert shown(both) == {"b2": 60.0}
        # A key of the prefix that is not there is absent; another one is nothing that the mirror knows of.
        assert not by_prefix.get("a9")
        for mirror, other in ((by_prefix, "b2"), (both, "a1")):
            with pytest.raises(errors.MalformedRequest, match="of a range of keys"):
                mirror.get(other)
            assert (await mirror.fetch(other)).role is Role.OWNER
        # One that the predicate is not true of is not in the mirror; a server knows it.
        assert not hot.get("a2")
        assert (await hot.fetch("a2")).value.celsius == 2.0
        assert (await hot.fetch("a1")).role is Role.MIRROR
        with pytest.raises(errors.MalformedRequest, match="leave one of these out"):
            client.mirror(PATH, "a1", prefix="a")
        with pytest.raises(errors.ValueMismatch, match="kelvin"):
            async with client.mirror(PATH, where=field("kelvin") > 30):
                pass


async def test_what_has_expired_by_the_watermark_is_hidden_whichever_server_has_it() -> None:
    kafka = MemoryKafka()
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(state_server("a", kafka))
        b = await stack.enter_async_context(state_server("b", kafka))
        of = msgspec.structs.replace(descriptor(), ttl_ms=1_000, ttl_clock=TtlClock.EVENT_TIME)
        await a.own_new(of)
        await a.commit(rows(20), watermark_ms=5_000)
        await b.succeed(a, range(0, of.key_groups, 2))
        await a.keep(range(1, of.key_groups, 2))
        proxy = await stack.enter_async_context(proxy_of(a.address, b.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        async with client.mirror(PATH) as mirror:
            assert len(mirror) == 20
            for server in (a, b):
                await server.commit_own({"sensor-1": row(5.0), "sensor-2": row(6.0)}, watermark_ms=6_500)
            await mirror.wait_for(2)
            expected = {"sensor-1": 5.0, "sensor-2": 6.0}
            assert (shown(mirror), len(mirror)) == (expected, 2)
            answers = await client.get_many(*NAME, list(rows(20)))
            assert [of.value for of in mirror.get_many(list(rows(20)))] == [of.value for of in answers]
            assert sum(of.found for of in answers) == 2
            mirrored, answered = mirror.get("sensor-9").source, answers[9].source
            assert (mirrored.epoch, mirrored.commit_time, mirrored.watermark) == (
                2,
                answered.commit_time,
                answered.watermark,
            )


async def test_a_mirror_of_a_map_state_has_all_entries_of_a_key() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(hourly())
        await server.commit({("s1", 1): row(1.0), ("s2", 2): row(2.0), ("s2", 3): row(3.0), ("s20", 1): row(4.0)})
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        async with client.mirror("weather/hourly", "s2", ("s1", 2)) as mirror:
            assert {(entry.key, entry.map_key): entry.value.celsius for entry in mirror} == {
                ("s2", 2): 2.0,
                ("s2", 3): 3.0,
            }
            assert mirror.get(("s2", 3)).value.celsius == 3.0
            assert not mirror.get(("s2", 4))
            assert not mirror.get(("s1", 2))
            for other in (("s1", 1), ("s20", 1)):
                with pytest.raises(errors.MalformedRequest):
                    mirror.get(other)
            with pytest.raises(errors.KeyMismatch):
                mirror.get("s2")
            assert mirror.scan("s2").values == (await client.scan("weather", "hourly", "s2")).values
            with pytest.raises(errors.MalformedRequest):
                mirror.scan("s1")
        async with client.state("weather/hourly", value=Reading).mirror() as whole:

            def hours(**within: Any) -> list[tuple[int, float]]:
                return [(hour, value.celsius) for hour, value in whole.scan("s2", **within)]

            assert hours() == [(2, 2.0), (3, 3.0)]
            assert (hours(start=3), hours(stop=3), hours(descending=True, limit=1)) == (
                [(3, 3.0)],
                [(2, 2.0)],
                [(3, 3.0)],
            )
            await server.commit({("s2", -1): row(-1.0), ("s2", 2): None, ("s2", 3): row(5.0), ("s20", 1): None})
            await whole.wait_for(2)
            assert hours() == [(-1, -1.0), (3, 5.0)]
            assert (whole.scan("s2").epoch, len(whole.scan("s20")), len(whole.scan("nobody"))) == (2, 0, 0)
            for wrong in ({"limit": 0}, {"start": "x"}):
                with pytest.raises((errors.MalformedRequest, errors.KeyMismatch)):
                    whole.scan("s2", **wrong)


@pytest.mark.parametrize("kind", [StateKind.BROADCAST, StateKind.LIST])
async def test_a_mirror_scans_what_has_one_key_or_positions(kind: StateKind) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(hourly(kind=kind, key_groups=1 if kind is StateKind.BROADCAST else 16))
        places: list[Any] = ["a", "b", "c"] if kind is StateKind.BROADCAST else [("s", at) for at in range(3)]
        await server.commit({place: row(float(at)) for at, place in enumerate(places)})
        client = await stack.enter_async_context(AsyncClient(server.address, timeout=LONG_SECONDS))
        key, bound = ((), "b") if kind is StateKind.BROADCAST else ("s", 1)
        async with client.mirror("weather/hourly") as mirror:
            for within in ({}, {"start": bound}, {"stop": bound}, {"descending": True, "limit": 2}):
                scanned = await client.scan("weather", "hourly", key, **within)  # type: ignore[arg-type]
                assert list(mirror.scan(key, **within)) == list(scanned)  # type: ignore[arg-type]
                assert len(scanned) > 0
            assert len(mirror) == 3


async def test_threads_read_whole_epochs_of_a_key_group_while_it_changes() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        codec = StateCodec(await server.own_new(descriptor()))
        of_one = [key for key in rows(400) if group_of(codec.storage_key(key)) == 3]
        await server.commit({key: row(1.0) for key in of_one})
        proxy = await stack.enter_async_context(proxy_of(server.address))
        torn: list[Any] = []
        begun, stop = threading.Event(), threading.Event()

        def reading(mirror: Mirror[Any]) -> None:
            nonlocal torn
            while not stop.is_set():
                begun.set()
                for answers in (mirror.get_many(of_one), list(mirror)):
                    seen = {(answer.value.celsius, answer.source.epoch) for answer in answers}
                    torn += [seen] if len(seen) > 1 else []
                alone = mirror.get(of_one[-1])
                if alone.value.celsius != alone.epoch:
                    torn.append(alone)

        def threaded() -> None:
            client = Client(proxy.address, timeout=LONG_SECONDS)
            with client, client.state(PATH, value=Reading).mirror() as mirror:
                threads = [threading.Thread(target=reading, args=(mirror,)) for _ in range(3)]
                for thread in threads:
                    thread.start()
                mirror.wait_for(9, timeout=LONG_SECONDS)
                stop.set()
                for thread in threads:
                    thread.join()
                assert mirror.get(of_one[0]).value == Reading(9.0)
                assert mirror.fetch(of_one[0]).role is Role.MIRROR
                assert mirror.fetch(of_one[0], stale="never").value == Reading(9.0)
                client.close()
                with pytest.raises(errors.ClientClosed):
                    mirror.get(of_one[0])

        task = asyncio.create_task(asyncio.to_thread(threaded))
        await eventually(lambda: begun.is_set() or task.done(), LONG_SECONDS)
        for epoch in range(2, 10):
            await server.commit({key: row(float(epoch)) for key in of_one})
        await task
        assert not torn


async def test_a_copy_goes_on_while_nobody_is_there_and_behind_it_where_it_can() -> None:
    kafka = MemoryKafka()
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(state_server("b", kafka))
        a_alone = AsyncExitStack()
        a = await a_alone.enter_async_context(state_server("a", kafka))
        of = await a.own_new(descriptor())
        await a.commit(rows(30))
        going = AsyncExitStack()
        proxy = await going.enter_async_context(proxy_of(a.address, b.address))
        second = await stack.enter_async_context(proxy_of(a.address, b.address))
        client = await stack.enter_async_context(AsyncClient([proxy.address, second.address], timeout=LONG_SECONDS))
        async with client.mirror(PATH) as mirror:
            # A proxy goes, then the owner.
            await going.aclose()
            await a.commit(rows(30, 100.0))
            await mirror.wait_for(2)
            assert shown(mirror) == values(30, 100.0)
            before = mirror.as_of
            await a_alone.aclose()
            assert shown(mirror) == values(30, 100.0)
            assert mirror.get("sensor-3").source.as_of == before
            await b.succeed(a)
            await b.commit({"sensor-3": None, "new": row(1.0)})
            await mirror.wait_for(3)
            assert mirror.get("new").value.celsius == 1.0
            assert not mirror.get("sensor-3")
            assert (len(mirror), mirror.copies_taken) == (30, 1)
            # The same name is another state.
            kafka.delete_topic(of.topic)
            await b.evolve(b.made_topic(descriptor()))
            with pytest.raises(errors.StaleDescriptor):
                await mirror.wait_for(99)


async def test_where_changes_are_gone_or_came_too_fast_another_copy_takes_the_place_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.state_server.servicers.watches.WatchLimits", lambda: WatchLimits(page_changes=2))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(descriptor())
        await server.commit(rows(30))
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        async with client.mirror(PATH) as mirror:
            # What can be read after each message.
            seen: list[int] = []
            take = MirrorCopy.take

            def seeing(of: MirrorCopy, message: Any) -> None:
                take(of, message)
                seen.append(len(mirror))

            monkeypatch.setattr(MirrorCopy, "take", seeing)

            def let_go(watcher: Watcher, pending: Any) -> None:
                watcher.error = errors.TooSlow("by this test")

            with monkeypatch.context() as slow:
                slow.setattr(Watcher, "give", let_go)
                await server.commit({"sensor-1": row(7.0)})
                await eventually(lambda: mirror.copies_taken == 2)
            assert mirror.get("sensor-1").value.celsius == 7.0
            # What has changed is not in memory, and may be compacted by now.
            with monkeypatch.context() as gone:
                gone.setattr("services.state_server.read.watch_times.RESUMABLE_MS", -1)
                gone.setattr(Changes, "_keep", lambda of, epoch: of._gap(epoch.key_group, epoch.after))
                await server.commit({"sensor-2": row(8.0), "sensor-3": None})
                await eventually(lambda: mirror.copies_taken == 3)
            assert (mirror.get("sensor-2").value.celsius, mirror.get("sensor-3").found) == (8.0, False)
            await server.commit({"sensor-4": row(9.0)})
            await mirror.wait_for(4)
            assert (len(mirror), mirror.get("sensor-4").value.celsius, mirror.copies_taken) == (29, 9.0, 3)
            # Never a copy that is not whole.
            assert len(seen) > 30
            assert set(seen) == {30, 29}


async def test_a_mirror_of_some_keys_waits_for_their_key_groups_and_for_no_others_that_a_token_names() -> None:
    fed = descriptor("fed", topic_id="topic-3", updates_topic_id="updates-1")
    groups = {name: group_of(StateCodec(fed).storage_key(name)) for name in rows(10)}
    its_own = groups["sensor-1"]
    other = next(group for group in groups.values() if group != its_own)
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        server.host(fed, rows(10)).epoch = 7
        server.changed()
        async with (
            AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
            client.mirror(f"{fed.application}/fed", "sensor-1") as mirror,
        ):
            await mirror.wait_for({its_own: 7, other: 9}, timeout=LONG_SECONDS)
            with pytest.raises(errors.EpochNotReached):
                await mirror.wait_for({its_own: 8, other: 1}, timeout=0.05)
