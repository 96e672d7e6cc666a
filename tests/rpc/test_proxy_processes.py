"""A proxy of two processes, as its readers and its operator see it: real processes on one port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from keyhole import AsyncClient
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import serves, spawn_client_proxy
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import stats_pb2
from tests.support import figures
from tests.support.proxies import fake_servers, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.waiting import LONG_SECONDS, eventually, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone spreads connections over processes")

SENSORS = [f"sensor-{number}" for number in range(100)]
KEYS = "keyhole_client_proxy_lookup_keys_total"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def processes_of(proxy: Child) -> set[int]:
    """Those that serve, or begin to."""
    return {of.pid for of in psutil.Process(proxy.pid).children() if is_child(of)}


def is_child(process: psutil.Process) -> bool:
    try:
        return "services.client_proxy.processes.child" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def lives(pid: int) -> bool:
    """Whether it does: one that nobody has waited for has a number still."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def spawned(tmp_path: Path, *servers: str, port: int, **settings: str) -> Child:
    own = {f"KEYHOLE_CLIENT_PROXY_{name}": value for name, value in settings.items()}
    environ = {**os.environ, "KEYHOLE_CLIENT_PROXY_PROCESSES": "2", **own}
    name = f"proxy-{len(list(tmp_path.iterdir()))}"
    return spawn_client_proxy(name, port, servers=servers, directory=tmp_path, environ=environ)


@asynccontextmanager
async def two_processes(tmp_path: Path, *servers: str, **settings: str) -> AsyncIterator[tuple[Child, str]]:
    """A proxy and its address, once both of its processes listen."""
    (port,) = free_ports(1)
    proxy = spawned(tmp_path, *servers, port=port, **settings)
    try:
        says = f"started client-proxy 127.0.0.1:{port}"
        await asyncio.to_thread(proxy.wait_healthy, lambda: proxy.output().count(says) == 2, LONG_SECONDS)
        yield proxy, f"127.0.0.1:{port}"
    finally:
        proxy.kill()


def fetched(address: str, path: str) -> Any:
    """Over a connection of its own: any of the processes answers."""
    with _DIRECT.open(f"http://{address}{path}", timeout=LONG_SECONDS) as answer:
        return answer.read()


def keys_by_process(stats: stats_pb2.ReadStatsResponse) -> Counter[str]:
    found: Counter[str] = Counter()
    for family in stats.families:
        for sample in family.samples if family.name == KEYS else ():
            found[sample.labels[0].rpartition("/")[2]] += int(sample.value)
    return found


async def test_figures_and_the_console_are_of_all_processes_whichever_of_them_answers(tmp_path: Path) -> None:
    http, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(100))
        async with two_processes(tmp_path, server.address, HTTP=http, METRICS=metrics) as (proxy, address):
            # Of each connection the kernel says by which process; none of a hundred by one of them means a broken one.
            read = 0
            while len(+keys_by_process(await figures.read_stats(address))) < 2:
                assert read < 100
                async with AsyncClient(address, timeout=LONG_SECONDS) as client:
                    await client.get(APPLICATION, STATE, SENSORS[0])
                read += 1

            def late() -> bool:
                """On a machine that is too slow for it, what was told before is shown, and the log says so."""
                return "did not come in time" in proxy.output()

            for _ in range(10):
                stats = await figures.read_stats(address)
                assert stats.name.endswith(address.rpartition(":")[2])
                assert keys_by_process(stats).total() == read or late()
                assert set(keys_by_process(stats)) == {"0", "1"} or late()
                overview = json.loads(await asyncio.to_thread(fetched, http, "/console/api/overview"))
                assert [of["reads"]["keys"] for of in overview["states"]] == [read] or late()
                page = (await asyncio.to_thread(fetched, metrics, "/metrics")).decode()
                counted = [line for line in page.splitlines() if line.startswith(f"{KEYS}{{") and STATE in line]
                assert sum(float(line.rpartition(" ")[2]) for line in counted) == read or late()
            # The events are those of the process that has begun first, and not now these and now those.
            events = {json.dumps(overview["events"])}
            for _ in range(10):
                overview = json.loads(await asyncio.to_thread(fetched, http, "/console/api/overview"))
                events.add(json.dumps(overview["events"]))
            assert len(events) == 1 or late()
            assert proxy.terminate(LONG_SECONDS) == 0


async def reads_go_on(server: FakeServer, address: str, over: asyncio.Event, done: Counter[int], number: int) -> None:
    async with AsyncClient(address, timeout=LONG_SECONDS) as client:
        session = client.session()
        while not over.is_set():
            answer = await session.get(APPLICATION, STATE, SENSORS[number])
            assert answer.value.celsius == float(number)
            done[number] += 1


async def test_no_read_fails_where_a_process_is_killed_and_another_one_takes_its_place(tmp_path: Path) -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(100))
        async with two_processes(tmp_path, server.address) as (proxy, address):
            over, done = asyncio.Event(), Counter[int]()

            async def goes_on() -> None:
                least = {number: done[number] + 3 for number in range(8)}
                await eventually(lambda: all(done[number] >= of for number, of in least.items()), LONG_SECONDS)

            async with asyncio.TaskGroup() as reading:  # one that fails ends all
                for number in range(8):
                    reading.create_task(reads_go_on(server, address, over, done, number))
                await goes_on()
                first = processes_of(proxy)
                assert len(first) == 2
                for pid in first:
                    os.kill(pid, signal.SIGKILL)
                    await goes_on()
                    await eventually(lambda pid=pid: len(processes_of(proxy) - {pid}) == 2, LONG_SECONDS)
                over.set()
            assert processes_of(proxy).isdisjoint(first)
            await eventually(lambda: proxy.output().count("started client-proxy ") == 4, LONG_SECONDS)
            assert await asyncio.to_thread(serves, address)
            assert proxy.output().count("has ended and is started again") == 2
            assert "ended with signal SIGKILL" in proxy.output()
            # All that there was has begun anew: both are there, with what they have counted themselves.
            assert set(keys_by_process(await figures.read_stats(address))) == {"0", "1"}


async def test_a_watch_goes_on_at_another_process_behind_what_it_has_told(tmp_path: Path) -> None:
    async with fake_servers("a") as (server,), AsyncExitStack() as stack:
        hosted = server.host(descriptor(), rows(3))
        proxy, address = await stack.enter_async_context(two_processes(tmp_path, server.address))
        client = await stack.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS))
        changes = await stack.enter_async_context(client.watch(APPLICATION, STATE, "sensor-1"))
        values: list[float] = []

        async def next_change() -> None:
            async with asyncio.timeout(LONG_SECONDS):
                async for change in changes:
                    values.append(change.value.celsius)
                    return

        await next_change()
        while not changes.snapshot_done:
            await changes.page()
        # Whichever of them has it is killed; the other one, or its successor, is asked for what comes next.
        for number, pid in enumerate(processes_of(proxy)):
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda pid=pid: len(processes_of(proxy) - {pid}) == 2, LONG_SECONDS)
            hosted.commit()
            hosted.put("sensor-1", row(100.0 + number))
            server.changed()
            await next_change()
        assert values == [1.0, 100.0, 101.0]


async def test_sigterm_lets_reads_under_way_end_and_leaves_no_process(tmp_path: Path) -> None:
    async with fake_servers("a") as (server,), AsyncExitStack() as stack:
        server.host(descriptor(), rows(100))
        given = two_processes(tmp_path, server.address, DRAIN_SECONDS=str(LONG_SECONDS))
        proxy, address = await stack.enter_async_context(given)
        clients = [await stack.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS)) for _ in range(6)]
        for client in clients:
            await client.get(APPLICATION, STATE, SENSORS[0])
        processes = processes_of(proxy)
        server.hold.clear()
        reads = [asyncio.ensure_future(client.get(APPLICATION, STATE, SENSORS[5])) for client in clients]
        await eventually(lambda: server.held > 0, LONG_SECONDS)
        os.kill(proxy.pid, signal.SIGTERM)
        await eventually(lambda: proxy.output().count('"message": "draining"') == 2, LONG_SECONDS)
        server.hold.set()
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        # Those that were on their way as it began to drain may be refused; what it had taken it answers.
        answered = [answer for answer in outcomes if not isinstance(answer, BaseException)]
        assert answered
        assert {answer.value.celsius for answer in answered} == {5.0}
        assert await asyncio.to_thread(proxy.wait, LONG_SECONDS) == 0
        assert not any(map(lives, processes))


async def test_a_port_that_another_proxy_has_is_refused_with_one_line(tmp_path: Path) -> None:
    with unused_address() as nobody:
        async with two_processes(tmp_path, nobody) as (proxy, address):
            port = int(address.rpartition(":")[2])
            # Of the same user, and sharing ports as well; and one that shares none.
            for processes in ("2", "1"):
                second = spawned(tmp_path, nobody, port=port, PROCESSES=processes)
                assert await asyncio.to_thread(second.wait, LONG_SECONDS) == 1
                (line,) = [line for line in second.output().splitlines() if line.startswith("client-proxy: ")]
                assert f"client-proxy can't listen on {address}: another process has the port" in line
            assert proxy.exit_code is None


def test_a_setting_that_no_process_can_serve_with_ends_all_with_one_line(tmp_path: Path) -> None:
    with unused_address() as nobody:
        proxy = spawned(tmp_path, nobody, port=0, HTTP_ORIGINS="https://app.example.com")
        assert proxy.wait(LONG_SECONDS) == 1
        lines = [line for line in proxy.output().splitlines() if line.startswith("client-proxy: ")]
        assert len(lines) == 1
        assert "KEYHOLE_CLIENT_PROXY_HTTP_ORIGINS is set and KEYHOLE_CLIENT_PROXY_HTTP isn't" in lines[0]


async def test_processes_whose_parent_is_killed_give_its_port_back(tmp_path: Path) -> None:
    with unused_address() as nobody:
        async with two_processes(tmp_path, nobody) as (proxy, address):
            processes = processes_of(proxy)
            os.kill(proxy.pid, signal.SIGKILL)  # it alone, and not its group

            def is_free() -> bool:
                with socket.socket() as listening:
                    try:
                        listening.bind(("127.0.0.1", int(address.rpartition(":")[2])))
                    except OSError:
                        return False
                return not any(map(lives, processes))

            await asyncio.to_thread(until, is_free, LONG_SECONDS)
