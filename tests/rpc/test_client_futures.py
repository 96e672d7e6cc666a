"""Reads of a Client that nobody waits for: their timeouts, their ends, and what their callbacks may do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, as_completed
from typing import Any

import pytest

from keyhole import Answer, Client
from keyhole.client.futures import then
from keyhole.errors import ClientClosed, KeyholeError, Unsupported
from tests.support.proxies import fake_servers
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, until

SENSOR = (APPLICATION, STATE, "sensor-1")


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of one who takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_each_future_is_done_by_its_timeout_and_those_under_way_fail_where_the_client_is_closed(deaf: str) -> None:
    client = Client(deaf, timeout=LONG_SECONDS)
    with pytest.raises(KeyholeError):
        client.get_async(*SENSOR, timeout=0.1).result(LONG_SECONDS)
    cancelled, first = client.get_async(*SENSOR), client.get_async(*SENSOR)
    many = client.get_many_async(APPLICATION, STATE, ["a", "b"])
    assert cancelled.cancel()
    with pytest.raises(CancelledError):
        cancelled.result()
    assert not first.done()
    client.close()
    for future in (first, many):
        with pytest.raises(ClientClosed):
            future.result(LONG_SECONDS)  # type: ignore[attr-defined]
    with pytest.raises(ClientClosed):
        client.get_async(*SENSOR)


async def test_a_callback_may_read_on_and_is_told_that_it_may_not_block() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(100))

        def reads() -> None:
            found: list[object] = []
            done = threading.Event()

            def read_on(future: Future[Answer]) -> None:
                found.append(future.result().value.celsius)
                for blocks in (lambda: client.get(*SENSOR), client.close, lambda: client.state("a/b").describe()):
                    with pytest.raises(Unsupported, match="get_async or get_many_async in it"):
                        blocks()
                client.get_async(APPLICATION, STATE, "sensor-2").add_done_callback(last)

            def last(future: Future[Answer]) -> None:
                found.append(future.result().value.celsius)
                done.set()

            with Client(server.address, timeout=PATIENCE_SECONDS) as client:
                client.get_async(*SENSOR).add_done_callback(read_on)
                assert done.wait(LONG_SECONDS)
                assert found == [1.0, 2.0]
                every = {client.get_async(APPLICATION, STATE, f"sensor-{n}"): n for n in range(100)}
                assert {every[one]: one.result().value.celsius for one in as_completed(every)} == {
                    number: float(number) for number in range(100)
                }
                handle = client.state(f"{APPLICATION}/{STATE}")
                assert handle.get_async(sensor="sensor-3").result().value.celsius == 3.0
                assert [one.value.celsius for one in handle.get_many_async(["sensor-4"]).result()] == [4.0]
                wrong: dict[str, Any] = {"max_age": 5}
                with pytest.raises(TypeError, match="'max_age'"):
                    client.get_async(*SENSOR, **wrong).result()

        await asyncio.to_thread(reads)


def test_what_is_made_of_a_future_is_done_after_it_and_cancelled_with_it() -> None:
    asked: Future[int] = Future()
    made = then(asked, lambda number: number + 1)
    assert not made.done()
    asked.set_result(1)
    assert made.result() == 2
    failed: Future[int] = Future()
    broken, divided = then(failed, str), then(asked, lambda number: number // 0)
    failed.set_exception(ClientClosed("closed"))
    assert isinstance(broken.exception(), ClientClosed)
    assert isinstance(divided.exception(), ZeroDivisionError)
    first, second = Future[int](), Future[int]()
    of_first, of_second = then(first, str), then(second, str)
    assert first.cancel()
    assert of_second.cancel()
    assert (of_first.cancelled(), second.cancelled()) == (True, True)
    # One who waits for several is told of these, too.
    assert set(as_completed([of_first, of_second], timeout=LONG_SECONDS)) == {of_first, of_second}


def test_cancelled_reads_leave_nothing_under_way(deaf: str) -> None:
    with Client(deaf, timeout=LONG_SECONDS) as client:
        futures = [client.session().state(f"{APPLICATION}/{STATE}").get_async("sensor-1") for _ in range(50)]
        assert all(future.cancel() for future in futures)
        loop = client._loop
        assert loop is not None
        until(lambda: not [task for task in asyncio.all_tasks(loop) if "run" in task.get_coro().__qualname__])
