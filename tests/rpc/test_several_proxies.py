"""Clients that lose a proxy, or one of several: what was cut off is sent again, and what was refused is not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keyhole import AsyncClient, Client, errors
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy
from keyhole.security.credentials import Credentials
from keyhole.testing.fake_server import FakeServer
from tests.support import entries, figures
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.refusals import longer_and_longer, raised_at_deadline
from tests.support.waiting import LONG_SECONDS, eventually

SENSORS = [f"sensor-{number}" for number in range(100)]
NUMBERS = [float(number) for number in range(100)]
HOURS = range(9)


def host(server: FakeServer) -> None:
    server.host(descriptor(), rows(100))
    server.host(entries.hourly(), entries.hours("sensor-7", HOURS))


async def got(client: AsyncClient) -> None:
    asked = [client.get(APPLICATION, STATE, name) for name in SENSORS]
    assert [answer.value.celsius for answer in await asyncio.gather(*asked)] == NUMBERS


async def got_many(client: AsyncClient) -> None:
    answers = await client.get_many(APPLICATION, STATE, SENSORS)
    assert [answer.value.celsius for answer in answers] == NUMBERS


async def scanned(client: AsyncClient) -> None:
    answer = await client.scan(entries.APPLICATION, entries.STATE, "sensor-7")
    assert [(entry.map_key, entry.value.celsius) for entry in answer] == [(hour, float(hour)) for hour in HOURS]


async def listed(client: AsyncClient) -> None:
    assert {state.state for state in await client.list_states(APPLICATION)} == {STATE, entries.STATE}


async def asked(client: AsyncClient) -> None:
    assert [server.server for server in await client.status()] == ["a"]


async def scanned_all(client: AsyncClient) -> None:
    for ordered in (False, True):
        found = [entry.value.celsius async for entry in client.scan_all(APPLICATION, STATE, ordered=ordered)]
        assert sorted(found) == NUMBERS


async def tabled(client: AsyncClient) -> None:
    table = await client.scan_all(APPLICATION, STATE).to_arrow()
    assert sorted(table["celsius"].to_pylist()) == NUMBERS


async def counted(client: AsyncClient) -> None:
    assert await client.count(APPLICATION, STATE) == len(NUMBERS)


async def watched(client: AsyncClient) -> None:
    found: list[float] = []
    async with client.watch(APPLICATION, STATE) as watch:
        while not watch.snapshot_done:
            found += [change.value.celsius for change in await watch.page()]
    assert sorted(found) == NUMBERS


async def mirrored(client: AsyncClient) -> None:
    async with client.mirror(f"{APPLICATION}/{STATE}") as mirror:
        assert sorted(entry.value.celsius for entry in mirror) == NUMBERS


async def got_of_one_epoch(client: AsyncClient) -> None:
    snapshot = await client.snapshot(f"{APPLICATION}/{STATE}")
    answers = await snapshot.state(f"{APPLICATION}/{STATE}").get_many(SENSORS)
    assert [answer.value.celsius for answer in answers] == NUMBERS


READS = [got, got_many, scanned, listed, asked]
# These have a minute, whatever the client's timeout is.
LONG_READS = [scanned_all, tabled, counted, watched, mirrored, got_of_one_epoch]


async def answered(address: str) -> float:
    """How many lookups a proxy has answered since it was started."""
    return figures.value(await figures.read_stats(address), "keyhole_client_proxy_lookup_keys_total")


async def test_no_read_fails_and_every_answer_is_right_while_one_of_two_proxies_is_killed_and_comes_back(
    tmp_path: Path,
) -> None:
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    async with fake_servers("a") as (server,):
        host(server)

        async def started(port: int) -> Child:
            return await asyncio.to_thread(
                start_client_proxy,
                f"proxy-{port}",
                port,
                servers=[server.address],
                directory=tmp_path,
                environ=os.environ,
            )

        proxies = [await started(port) for port in ports]
        try:
            async with AsyncClient(",".join(addresses), timeout=LONG_SECONDS) as client:
                over = asyncio.Event()
                done = dict.fromkeys(READS + LONG_READS, 0)

                async def read(how: Callable[[AsyncClient], Awaitable[None]]) -> None:
                    while not over.is_set():
                        await how(client)
                        done[how] += 1

                async def goes_on() -> None:
                    until = {how: count + (5 if how in READS else 1) for how, count in done.items()}
                    await eventually(lambda: all(done[how] >= until[how] for how in done), LONG_SECONDS)

                async with asyncio.TaskGroup() as reading:  # one that fails ends all
                    for how in READS * 2 + LONG_READS:
                        reading.create_task(read(how))
                    await goes_on()
                    for place in (0, 1):
                        assert proxies[place].kill() == -signal.SIGKILL
                        await goes_on()
                        proxies[place] = await started(ports[place])
                        async with asyncio.timeout(LONG_SECONDS):
                            while await answered(addresses[place]) == 0:  # it has its share again
                                await goes_on()
                    over.set()
        finally:
            for proxy in proxies:
                proxy.kill()


def _any_failed(tasks: list[asyncio.Task[None]]) -> bool:
    return any(task.done() for task in tasks)


async def test_what_was_under_way_to_a_target_that_is_lost_is_answered_by_the_other_and_scans_by_it_alone() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            host(server)
        # Another epoch, so that a mixture would be seen.
        b.host(entries.hourly(), entries.hours("sensor-7", range(11), count=2)).epoch = 2
        async with AsyncClient([a.address, b.address], timeout=LONG_SECONDS) as client:
            await got(client)
            for server in (a, b):
                server.hold_after = 3
                server.hold.clear()
            scans = [asyncio.create_task(client.scan(entries.APPLICATION, entries.STATE, "sensor-7")) for _ in range(4)]
            await eventually(lambda: (a.scans, b.scans) == (2, 2))
            under_way = [client.get(APPLICATION, STATE, name) for name in SENSORS[:50]]
            await eventually(lambda: a.held + b.held == 1)
            under_way += [client.get(APPLICATION, STATE, name) for name in SENSORS[50:]]
            await eventually(lambda: (a.held, b.held) == (1, 1))
            await a.stop()
            b.hold.set()
            assert [answer.value.celsius for answer in await asyncio.gather(*under_way)] == NUMBERS
            for answer in await asyncio.gather(*scans):
                assert (answer.source.server, len(answer)) == ("b", 11)
                assert {value.count for value in answer.values} == {2}


async def test_reads_are_spread_over_the_targets_that_answer() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            host(server)
        async with AsyncClient(f"{a.address}, {b.address}", timeout=LONG_SECONDS) as client:
            for name in SENSORS:
                await client.get(APPLICATION, STATE, name)
        assert (a.frames, b.frames) == (50, 50)


@pytest.mark.parametrize("read", READS + LONG_READS)
async def test_a_target_that_nobody_listens_at_is_no_matter_beside_one_that_answers(
    read: Callable[[AsyncClient], Awaitable[None]],
) -> None:
    async with fake_servers("a") as (a,):
        host(a)
        with unused_address() as nobody:
            for targets in ([nobody, a.address], [a.address, nobody]):
                async with AsyncClient(targets, timeout=LONG_SECONDS) as client:
                    for _ in range(3):
                        await read(client)


@pytest.mark.parametrize("read", READS + LONG_READS)
async def test_the_only_target_is_waited_for_within_the_timeout(
    read: Callable[[AsyncClient], Awaitable[None]],
) -> None:
    async with fake_servers("a") as (a,):
        host(a)
        async with AsyncClient(a.address, timeout=LONG_SECONDS) as client:
            await read(client)
            await a.stop()
            waiting = asyncio.create_task(read(client))
            await asyncio.sleep(0.05)
            again = FakeServer("a", a.port)
            host(again)
            await again.start()
            await waiting
            await again.stop()


@pytest.mark.parametrize("read", READS)
async def test_at_the_deadline_the_last_cause_is_told_and_how_often_it_was_tried(
    read: Callable[[AsyncClient], Awaitable[None]],
) -> None:
    with unused_address() as address:

        async def in_vain(seconds: float) -> None:
            async with AsyncClient(address, timeout=seconds) as client:
                await read(client)

        says = rf"{address} can't be reached.*; sent \d+ times"
        for seconds in longer_and_longer(0.5):
            error = await raised_at_deadline(in_vain, seconds, errors.ServerLost, says)
            if int(error.facts["attempts"]) >= 2:  # on a slow machine the first one alone takes so long
                break
    assert int(error.facts["attempts"]) >= 2


async def test_a_target_that_keeps_silent_after_another_one_was_lost_is_told_with_why_that_was() -> None:
    for seconds in longer_and_longer(2.0):
        async with fake_servers("a", "b") as (a, b):
            for server in (a, b):
                host(server)
            async with AsyncClient([a.address, b.address], timeout=seconds) as client:
                for name in SENSORS[:10]:
                    await client.get(APPLICATION, STATE, name, timeout=LONG_SECONDS)
                for server in (a, b):
                    server.hold.clear()
                reads = [
                    client.get(APPLICATION, STATE, SENSORS[1]),
                    client.get(APPLICATION, STATE, SENSORS[2], min_epoch=1),
                ]
                await eventually(lambda a=a, b=b: (a.held, b.held) == (1, 1))
                await a.stop()
                outcomes = await asyncio.gather(*reads, return_exceptions=True)
                assert {type(error) for error in outcomes} == {errors.DeadlineExceeded}
                cut = [error for error in outcomes if isinstance(error, KeyholeError) and "attempts" in error.facts]
        if cut:  # else the machine is slow, and the deadline has passed before the target was lost
            break
    (error,) = cut
    assert "sent 2 times, and cut off before because server " + a.address in error.message
    assert error.facts["cause"] == "SERVER_LOST"


async def test_a_session_never_goes_back_where_its_read_is_sent_again_to_one_that_is_behind() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            host(server)
            server.states[APPLICATION, STATE].epoch = 7 if server is a else 6
            server.states[entries.APPLICATION, entries.STATE].epoch = 7 if server is a else 6
        async with AsyncClient([a.address, b.address], timeout=LONG_SECONDS) as client:
            await got(client)
            seen = {(APPLICATION, STATE): 7, (entries.APPLICATION, entries.STATE): 7}
            session = client.session(seen)
            a.hold.clear()
            reads: list[asyncio.Future[object]] = []
            for _ in range(2):  # one for each of them
                scan = session.scan(entries.APPLICATION, entries.STATE, "sensor-7")
                reads.append(asyncio.ensure_future(scan))
            await eventually(lambda: a.scans == 1)
            while a.held == 0:
                reads.append(asyncio.ensure_future(session.get(APPLICATION, STATE, SENSORS[1])))
                await asyncio.sleep(0.01)
            await a.stop()
            outcomes = await asyncio.gather(*reads, return_exceptions=True)
            assert {type(error) for error in outcomes} == {errors.EpochNotReached}
            assert all("at epoch 6" in str(error) for error in outcomes)


# The last is asked for by a newer descriptor.
_OTHERWISE = (errors.ServerLost, errors.Draining, errors.StaleDescriptor)


@pytest.mark.parametrize("refusal", [kind for kind in errors.by_reason().values() if kind not in _OTHERWISE])
async def test_what_is_refused_is_asked_once(refusal: type[KeyholeError]) -> None:
    async with fake_servers("a", "b") as servers:
        for server in servers:
            host(server)
        async with AsyncClient([server.address for server in servers], timeout=LONG_SECONDS) as client:
            await got(client)
            for server in servers:
                server.refuse = refusal("no; ask for something else")
            before = sum(server.frames for server in servers)
            with pytest.raises(refusal, match="no; ask"):
                await client.get(APPLICATION, STATE, SENSORS[1])
            with pytest.raises(refusal, match="no; ask"):
                await scanned(client)
            assert sum(server.frames for server in servers) == before + 1


async def test_a_proxy_that_is_stopped_costs_no_read() -> None:
    """It answers what is under way, and refuses the rest: that goes to the other one."""
    async with fake_servers("a") as (server,):
        host(server)
        async with (
            proxy_of(server.address) as one,
            proxy_of(server.address) as other,
            AsyncClient([one.address, other.address], timeout=LONG_SECONDS) as client,
        ):
            await got(client)
            server.hold.clear()
            reads = [asyncio.create_task(read(client)) for read in READS]
            await eventually(lambda: server.held > 0)
            stopping = asyncio.create_task(one.stop(LONG_SECONDS))
            reads += [asyncio.create_task(read(client)) for read in READS]
            server.hold.set()
            await asyncio.gather(*reads)
            await stopping
            for read in READS:
                await read(client)


async def test_closing_the_client_ends_what_waits_for_a_target_at_once() -> None:
    with unused_address() as one, unused_address() as other:
        for targets in (one, [one, other]):
            client = AsyncClient(targets, timeout=LONG_SECONDS)
            waiting = [asyncio.create_task(read(client)) for read in READS]
            await asyncio.sleep(0.3)
            assert not _any_failed(waiting)
            async with asyncio.timeout(LONG_SECONDS / 2):
                await client.close()
                outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(error) for error in outcomes} == {errors.ClientClosed}


async def test_closing_it_ends_lookups_that_wait_to_be_sent_again_too() -> None:
    async with fake_servers("a") as (server,):
        host(server)
        client = AsyncClient(server.address, timeout=LONG_SECONDS)
        await got(client)
        await server.stop()
        waiting = [client.get(APPLICATION, STATE, name) for name in SENSORS]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(LONG_SECONDS / 2):
            await client.close()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in outcomes} == {errors.ClientClosed}


async def test_threads_have_several_targets_too_and_what_grpc_resolves_is_one_of_them() -> None:
    async with fake_servers("a", "b") as (a, b):
        for server in (a, b):
            host(server)

        def read() -> list[float]:
            with Client([f"dns:///{a.address}", b.address], timeout=LONG_SECONDS) as client:
                return [client.get(APPLICATION, STATE, name).value.celsius for name in SENSORS]

        assert await asyncio.to_thread(read) == NUMBERS
        assert min(a.frames, b.frames) > 0
        await a.stop()
        assert await asyncio.to_thread(read) == NUMBERS


async def test_no_read_waits_for_one_that_a_proxy_still_has_under_way_as_it_drains() -> None:
    async with fake_servers("a") as (server,), proxy_of(server.address) as one, proxy_of(server.address) as other:
        host(server)
        # Key groups that nobody has for the moment.
        partial = descriptor("partial", topic_id="topic-2")
        server.host(partial, {}, range(1))
        server.changed()
        elsewhere = [name for name in SENSORS if group_of(StateCodec(partial).storage_key(name)) > 0]
        async with AsyncClient([one.address, other.address], timeout=LONG_SECONDS) as client:
            await got(client)

            def busy() -> int:
                """How many of the proxies have a lookup under way."""
                sessions = [proxy._servicer._sessions for proxy in (one, other)]
                return sum(any(of._under_way for of in some) for some in sessions)

            waiting: list[asyncio.Future[Any]] = []
            for name in elsewhere[:2]:
                waiting.append(asyncio.ensure_future(client.get(APPLICATION, "partial", name)))
                await eventually(lambda: busy() == len(waiting), LONG_SECONDS)
            stopping = asyncio.ensure_future(one.stop(LONG_SECONDS))
            await eventually(lambda: all(of._draining for of in one._servicer._sessions), LONG_SECONDS)
            for _ in range(4):
                await got(client)
            assert not stopping.done()
            assert not any(of.done() for of in waiting)
        await asyncio.gather(*waiting, return_exceptions=True)
        await stopping


async def test_no_read_waits_for_one_that_is_under_way_as_a_newer_token_is_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    shown = Credentials(tls=False, token_file=str(token))
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        host(server)
        partial = descriptor("partial", topic_id="topic-2")
        server.host(partial, {}, range(1))
        server.changed()
        elsewhere = next(name for name in SENSORS if group_of(StateCodec(partial).storage_key(name)) > 0)
        async with AsyncClient(proxy.address, credentials=shown, timeout=LONG_SECONDS) as client:
            await got(client)
            waits = asyncio.ensure_future(client.get(APPLICATION, "partial", elsewhere))
            await eventually(lambda: any(of._under_way for of in proxy._servicer._sessions), LONG_SECONDS)
            token.write_text("second\n")
            async with asyncio.timeout(LONG_SECONDS):
                while len(proxy._servicer._sessions) < 2:
                    await got(client)
            await got(client)
            assert not waits.done()
        await asyncio.gather(waits, return_exceptions=True)
