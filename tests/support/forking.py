"""Processes that fork while they have clients: `python -m tests.support.forking SCENARIO ADDRESS`.

Prints what each of them met, one a line: the state's value, or the error's class and message. Each process ends by
itself after LIMIT_SECONDS, also one that hangs.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from keyhole import AsyncClient, Client
from keyhole.rpc import forked
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS

LIMIT_SECONDS = 120
# Far beyond the limit: what waits for its deadline doesn't come to an end.
_TIMEOUT = 10 * LONG_SECONDS

_pooled: list[Client] = []


def _read(client: Client) -> str:
    return str(client.get(APPLICATION, STATE, "sensor-1", timeout=_TIMEOUT).value.celsius)


async def _read_async(client: AsyncClient) -> str:
    return str((await client.get(APPLICATION, STATE, "sensor-1", timeout=_TIMEOUT)).value.celsius)


def _tell(who: str, read: Callable[[], str]) -> None:
    try:
        met = read()
    except Exception as error:  # noqa: BLE001 - it is told
        met = f"{type(error).__name__}: {error}"
    print(f"{who}: {met}", flush=True)


def _limit() -> None:
    # Not faulthandler's: in a child that waits for the thread that it had in the parent.
    signal.alarm(LIMIT_SECONDS)


def _fork(read: Callable[[], str], who: str = "child") -> None:
    """Reads in a child, and waits for its end."""
    pid = os.fork()
    if not pid:
        _limit()
        _tell(who, read)
        sys.stdout.flush()
        os._exit(0)
    _, ended = os.waitpid(pid, 0)
    if ended:
        print(f"{who} ended with {os.waitstatus_to_exitcode(ended)}", flush=True)


def made_before(address: str) -> None:
    """A client that nobody has used yet."""
    with Client(address, timeout=_TIMEOUT) as client:
        _fork(lambda: _read(client))
        _tell("parent", lambda: _read(client))


def used_before(address: str) -> None:
    """A client that has a connection."""
    with Client(address, timeout=_TIMEOUT) as client:
        _tell("parent", lambda: _read(client))
        _fork(lambda: _read(client))

        def close() -> str:
            client.close()
            return "closed"

        _fork(close, "child that closes")
        _tell("parent", lambda: _read(client))


def mirrored_before(address: str) -> None:
    """A client with a mirror, which goes on in the parent alone."""
    with Client(address, timeout=_TIMEOUT) as client, client.mirror(f"{APPLICATION}/{STATE}") as mirror:

        def read() -> str:
            return str(mirror.get("sensor-1").value.celsius)

        def close() -> str:
            mirror.close()
            return "closed"

        _tell("parent", read)
        _fork(read)
        _fork(close, "child that closes")
        _tell("parent", read)


def streamed_before(address: str) -> None:
    """Of a client a scan and a watch have begun, which go on in the parent alone."""
    name = APPLICATION, STATE
    with (
        Client(address, timeout=_TIMEOUT) as client,
        client.scan_all(*name, limit=1) as scan,
        client.watch(*name) as watch,
    ):
        entries, changes = iter(scan), iter(watch)

        def read() -> str:
            return str(next(entries).value.celsius + next(changes).value.celsius)

        def close() -> str:
            scan.close()
            watch.close()
            return "closed"

        _tell("parent", read)
        _fork(lambda: str(list(entries)))
        _fork(lambda: str(next(changes)))
        _fork(close, "child that closes")
        _tell("parent", lambda: str(next(changes).value.celsius))


def another_in_the_child(address: str) -> None:
    """The parent's client has a connection, the child makes its own."""

    def read() -> str:
        with Client(address, timeout=_TIMEOUT) as own:
            return _read(own)

    with Client(address, timeout=_TIMEOUT) as client:
        _tell("parent", lambda: _read(client))
        _fork(read)


def closed_before(address: str) -> None:
    """The parent's clients are closed before each fork; the child forks, too."""

    def read() -> str:
        with Client(address, timeout=_TIMEOUT) as own:
            return _read(own)

    def read_and_fork() -> str:
        met = read()
        _ended()
        _fork(read, "grandchild")
        return met

    for _ in range(3):
        _tell("parent", read)
        _ended()
        _fork(read_and_fork)


def _ended() -> None:
    """Returns once what was closed has ended. A fork itself waits for that, but only for a moment."""
    until = time.monotonic() + LIMIT_SECONDS / 2
    while forked.polling() or forked.has_threads():
        if time.monotonic() > until:
            names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
            raise TimeoutError(f"gRPC goes on: polling {forked.polling()}, threads {names}")
        gc.collect()  # as a fork does
        time.sleep(0.01)


def beside_another_library(address: str) -> None:
    """Which uses gRPC's synchronous API; then it is closed."""
    import grpc  # after Keyhole's client, which else leaves gRPC's support of forks as it is

    channel = grpc.insecure_channel(address)
    grpc.channel_ready_future(channel).result(LIMIT_SECONDS)
    client = Client(address, timeout=_TIMEOUT)
    _fork(lambda: _read(client))
    channel.close()
    del channel
    _ended()
    _fork(lambda: _read(client))


def closed_this_moment(address: str) -> None:
    """The same again and again, and no fork waits for what was closed but by itself."""
    import grpc

    client = Client(address, timeout=_TIMEOUT)
    for _ in range(20):
        channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(channel).result(LIMIT_SECONDS)
        channel.close()
        del channel
        _fork(lambda: _read(client))


def in_a_pool(address: str) -> None:
    """A client of the module, as tasks of multiprocessing and Celery have it."""
    _pooled.append(Client(address, timeout=_TIMEOUT))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(*pool.map(_pool_reads, range(4), chunksize=1), flush=True)


def _pool_reads(_: int) -> str:
    return _read(_pooled[0])


def among_readers(address: str) -> None:
    """Threads of the parent are in the middle of calls."""
    over = threading.Event()
    with Client(address, timeout=_TIMEOUT) as client:
        _read(client)

        def read_on() -> None:
            while not over.is_set():
                _read(client)

        readers = [threading.Thread(target=read_on) for _ in range(4)]
        for reader in readers:
            reader.start()
        for _ in range(5):
            _fork(lambda: _read(client))
        over.set()
        for reader in readers:
            reader.join()


def async_made_before(address: str) -> None:
    """The same of an AsyncClient."""
    client = AsyncClient(address, timeout=_TIMEOUT)
    _fork(lambda: asyncio.run(_read_async(client)))


def async_used_before(address: str) -> None:
    """Forked by a coroutine, whose event loop the child has not."""

    async def main() -> None:
        async with AsyncClient(address, timeout=_TIMEOUT) as client:
            print("parent:", await _read_async(client), flush=True)
            _fork(lambda: asyncio.run(_read_async(client)))
            print("parent:", await _read_async(client), flush=True)

    asyncio.run(main())


def async_loop_taken_along(address: str) -> None:
    """The child runs the event loop that the parent's client is used in."""
    client = AsyncClient(address, timeout=_TIMEOUT)
    loop = asyncio.new_event_loop()
    _tell("parent", lambda: loop.run_until_complete(_read_async(client)))
    _fork(lambda: loop.run_until_complete(_read_async(client)))
    loop.run_until_complete(client.close())
    loop.close()


def end_as_ever(address: str) -> None:
    """Children have the parent's client and end without a word of it."""
    client = Client(address, timeout=_TIMEOUT)
    _tell("parent", lambda: _read(client))
    ends: Counter[int] = Counter()
    for _ in range(30):
        pid = os.fork()
        if not pid:
            _limit()
            # gRPC's threads, if they are started again, have something to do.
            sum(range(1_000_000))
            sys.exit(3)
        ends[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] += 1
    print("children ended with", dict(ends), flush=True)
    client.close()


def closes(address: str) -> None:
    """No fork: what is left of a client."""
    gc.disable()

    async def main() -> None:
        async with AsyncClient(address, timeout=_TIMEOUT) as client:
            print(await _read_async(client), flush=True)
            await client.describe_state(APPLICATION, STATE)
            print("polling:", forked.polling(), flush=True)

    asyncio.run(main())
    # It ends by itself, a moment after its last channel.
    until = time.monotonic() + LIMIT_SECONDS / 2
    while forked.polling() and time.monotonic() < until:
        time.sleep(0.01)
    print("polling:", forked.polling(), flush=True)


def direct_used_before(address: str) -> None:
    """A client that asks the servers itself; the child's own one too, once it is closed."""
    from tests.support.direct_reads import reaches

    def read(client: Client) -> str:
        until = time.monotonic() + LIMIT_SECONDS / 2
        met = _read(client)
        while not any(reaches(client._client, of) for of in client._client._connection._servers._servers):
            assert time.monotonic() < until
            time.sleep(0.01)
        return met + _read(client)

    def read_by_another() -> str:
        with Client(address, routing="direct", timeout=_TIMEOUT) as own:
            return read(own)

    with Client(address, routing="direct", timeout=_TIMEOUT) as client:
        _tell("parent", lambda: read(client))
        _fork(lambda: read(client))
        _tell("parent", lambda: read(client))
    _ended()
    _fork(read_by_another)
    print("threads:", [thread.name for thread in threading.enumerate()], flush=True)
    print("sockets:", [of.raddr for of in psutil.Process().net_connections()], flush=True)


async def printed_by(scenario: str, *, by_proxy: bool = False) -> list[str]:
    """What the processes of the scenario print, within a limit that ends all of them."""
    # Here: a process of a scenario needs no servers, and is nothing but its start.
    from tests.support.proxies import fake_servers, proxy_of

    async with AsyncExitStack() as stack:
        (server,) = await stack.enter_async_context(fake_servers("a"))
        server.host(descriptor(), rows(10))
        address = server.address
        if by_proxy:
            address = (await stack.enter_async_context(proxy_of(address))).address
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.support.forking", scenario, address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            printed, errors = await asyncio.wait_for(process.communicate(), 3 * LIMIT_SECONDS)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, f"it ended with {process.returncode}, having printed {printed!r}: {errors.decode()}"
    return printed.decode().splitlines()


if __name__ == "__main__":
    _limit()
    globals()[sys.argv[1]](sys.argv[2])
