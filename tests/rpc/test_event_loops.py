"""Clients of several event loops and threads."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from keyhole import AsyncClient, Client
from keyhole.client.item_streams import AsyncItemStream, ItemStream
from keyhole.errors import ClientClosed, Unsupported
from keyhole.rpc import forked
from keyhole.testing.fake_server import FakeServer
from tests.support.forking import printed_by
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, until


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """On an event loop in a thread of its own."""
    started: list[FakeServer] = []
    stop: list[asyncio.Event] = []

    async def serve() -> None:
        server = FakeServer("a")
        await server.start()
        server.host(descriptor(), rows(10))
        stop.append(asyncio.Event())
        started.append(server)
        await stop[0].wait()
        await server.stop()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    until(lambda: started)
    yield started[0]
    loop.call_soon_threadsafe(stop[0].set)
    thread.join()
    loop.close()


async def _read(client: AsyncClient) -> float:
    celsius: float = (await client.get(APPLICATION, STATE, "sensor-1", timeout=PATIENCE_SECONDS)).value.celsius
    return celsius


def test_one_event_loop_after_the_other_has_a_client_without_a_word_of_grpcs(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC hands what comes late for a loop that is closed to another one, here the server's, which logs it."""

    async def main() -> float:
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            await client.describe_state(APPLICATION, STATE)
            return await _read(client)

    with caplog.at_level(logging.ERROR):
        assert [asyncio.run(main()) for _ in range(20)] == [1.0] * 20
    assert not caplog.records


def test_a_program_of_one_event_loop_after_the_other_writes_nothing_to_stderr(server: FakeServer) -> None:
    """Neither past Python's log, as gRPC's core does. With a loop beside them, which takes what comes late for them."""
    program = (
        "import asyncio, sys; from keyhole import AsyncClient, Client\n"
        "async def main():\n"
        "    async with AsyncClient(sys.argv[1], timeout=60) as client:\n"
        f"        await client.describe_state({APPLICATION!r}, {STATE!r})\n"
        f"        return (await client.get({APPLICATION!r}, {STATE!r}, 'sensor-1')).value.celsius\n"
        "print([asyncio.run(main()) for _ in range(5)])\n"
        "with Client(sys.argv[1], timeout=60) as beside:\n"
        f"    beside.get({APPLICATION!r}, {STATE!r}, 'sensor-1')\n"
        "    print([asyncio.run(main()) for _ in range(20)])"
    )
    command = [sys.executable, "-c", program, server.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_SECONDS, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == (f"{[1.0] * 5}\n{[1.0] * 20}\n", "", 0)


def test_a_client_that_is_closed_ends_its_stream_and_does_not_cancel_it(server: FakeServer) -> None:
    """Of a stream that is cancelled gRPC tells the event loop later, by when that may be closed."""

    async def main() -> None:
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            await _read(client)

    for closed in range(1, 4):
        asyncio.run(main())
        until(lambda closed=closed: server.left == closed)  # type: ignore[misc]


async def test_a_client_that_is_closed_leaves_no_thread_of_grpcs() -> None:
    """Not one that waits to be found by the garbage collector."""
    assert await printed_by("closes") == ["1.0", "polling: True", "polling: False"]


def test_a_client_may_be_made_outside_of_an_event_loop(server: FakeServer) -> None:
    client = AsyncClient(server.address, timeout=LONG_SECONDS)

    async def main() -> float:
        async with client:
            return await _read(client)

    assert asyncio.run(main()) == 1.0


def test_a_client_that_is_used_outside_of_an_event_loop_says_what_to_use() -> None:
    with pytest.raises(Unsupported, match=r"inside a running event loop.*use keyhole\.Client"):
        AsyncClient("localhost:7400").get(APPLICATION, STATE, "sensor-1")


def test_a_client_of_another_event_loop_says_so_and_can_be_closed_where_that_is_over(server: FakeServer) -> None:
    client = AsyncClient(server.address, timeout=LONG_SECONDS)
    assert asyncio.run(_read(client)) == 1.0
    with pytest.raises(Unsupported, match="belongs to the event loop that used it first"):
        asyncio.run(_read(client))
    asyncio.run(client.close())
    with pytest.raises(ClientClosed):
        asyncio.run(_read(client))


async def test_a_client_of_another_thread_says_so(server: FakeServer) -> None:
    async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
        assert await _read(client) == 1.0
        with pytest.raises(Unsupported, match="belongs to the event loop that used it first"):
            await asyncio.to_thread(asyncio.run, _read(client))
        with pytest.raises(Unsupported, match="inside a running event loop"):
            await asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-1")
        with pytest.raises(Unsupported, match="belongs to the event loop that used it first"):
            await asyncio.to_thread(asyncio.run, client.close())
        assert await _read(client) == 1.0


async def _elsewhere(what: Callable[[], Awaitable[Any]]) -> None:
    async def run() -> None:
        await what()

    with pytest.raises(Unsupported, match=r"belongs to the event loop that (began|used) it"):
        await asyncio.to_thread(asyncio.run, run())


async def test_a_scan_or_a_watch_of_another_event_loop_says_so_and_goes_on_in_its_own(server: FakeServer) -> None:
    async with AsyncClient(server.address, timeout=PATIENCE_SECONDS) as client:
        await _read(client)
        scan, watch = client.scan_all(APPLICATION, STATE), client.watch(APPLICATION, STATE)
        streams: list[AsyncItemStream[Any, Any]] = [scan, watch]
        for stream in streams:
            await _elsewhere(stream.page)  # it has not begun: the client says so
            given = [(await anext(aiter(stream))).key]
            for call in (stream.page, lambda stream=stream: anext(aiter(stream)), stream.close):
                await _elsewhere(call)  # type: ignore[arg-type]
            while len(given) < 10:
                given += [item.key for item in await stream.page()]
            assert sorted(given) == sorted(rows(10))
            await stream.close()
            assert await stream.page() == []


async def test_of_a_scan_or_a_watch_one_task_or_thread_waits_and_another_one_is_told(server: FakeServer) -> None:
    async with AsyncClient(server.address, timeout=PATIENCE_SECONDS) as client:
        watch = client.watch(APPLICATION, STATE)
        while not watch.snapshot_done:
            await watch.page()
        waiting = asyncio.create_task(watch.page())
        await asyncio.sleep(0)
        with pytest.raises(Unsupported, match="another task or thread waits"):
            await watch.page()
        assert await waiting == []
        await watch.close()


async def test_a_mirror_is_waited_for_on_its_own_event_loop(server: FakeServer) -> None:
    async with (
        AsyncClient(server.address, timeout=LONG_SECONDS) as client,
        client.mirror(f"{APPLICATION}/{STATE}") as mirror,
    ):
        await _elsewhere(lambda: mirror.wait_for(1))
        await mirror.wait_for(1)


def test_streams_of_a_client_that_is_closed_can_be_closed(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(server.address, timeout=LONG_SECONDS) as client:
        streams: list[ItemStream[Any]] = [client.scan_all(APPLICATION, STATE), client.watch(APPLICATION, STATE)]
        for stream in streams:
            stream.page()
        with monkeypatch.context() as child:
            child.setattr(forked.process, "cut_off", True)
            for stream in streams:
                stream.close()
    for stream in streams:
        with pytest.raises(ClientClosed):
            stream.page()
        stream.close()


def test_a_program_that_ends_without_closing_its_client_ends_without_a_word(server: FakeServer) -> None:
    program = (
        "import sys; from keyhole import Client\n"
        "client = Client(sys.argv[1], timeout=60)\n"
        f"print(client.get({APPLICATION!r}, {STATE!r}, 'sensor-1').value.celsius)\n"
        "client.get_many('no', 'such', ['a']) if sys.argv[2:] else None"
    )
    for more in ([], ["fails"]):
        command = [sys.executable, "-X", "dev", "-c", program, server.address, *more]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_SECONDS, check=False)
        assert ended.stdout == "1.0\n"
        # On a busy machine asyncio's debugging tells of every step that took a tenth of a second.
        words = [line for line in ended.stderr.splitlines() if not re.match("Executing <.* took .* seconds$", line)]
        assert not [line for line in words if "Task" in line or "asyncio" in line], ended.stderr
        assert (ended.returncode, words) == (0, []) or more
