"""Readers of a state server, and their server, killed with SIGKILL at any moment while epochs are committed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from keyhole import AsyncClient
from keyhole.stores.base import StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.v1 import query_pb2 as pb
from services.state_server.readers.reader_process import ReaderProcess
from tests.support.lookup_ports import calling, streams_of, until_by_port
from tests.support.proxies import proxy_of
from tests.support.server_readers import LIMIT_BYTES, lives, pid_of, read_by, readers_of, until_all_read
from tests.support.states import content, descriptor, key, row
from tests.support.waiting import LONG_SECONDS, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes need Linux")

KEYS = [f"key-{number}" for number in range(40)]
COUNTS, A = pb.StateRef(application="app", state="counts"), pb.Key(parts=[pb.KeyPart(string="a")])


async def test_no_read_fails_or_goes_back_while_readers_are_killed(tmp_path: Path) -> None:
    """Each epoch writes its number to all keys. So what is read is the number of the epoch that it is said to be of,
    which never falls, and is no less than what was committed when it was asked for.
    """
    choose, over, committed, done = random.Random(24), asyncio.Event(), 1, 0
    killed: list[ReaderProcess] = []
    async with read_by(tmp_path / "stores", processes=3) as server:
        await server.own(descriptor())
        await server.commit(dict.fromkeys(KEYS, row(1.0)))
        async with proxy_of(server.address) as first, proxy_of(server.address) as second:
            for proxy in (first, second):
                await eventually(lambda: bool(streams_of(proxy)), LONG_SECONDS)  # noqa: B023
                await until_by_port(streams_of(proxy))

            async def read(address: str) -> None:
                nonlocal done
                last = 0
                async with AsyncClient(address, timeout=LONG_SECONDS) as client:
                    while not over.is_set():
                        before = committed
                        answers = await client.get_many("app", "counts", KEYS)
                        # Of one epoch each; what is asked for again, as its process was killed, may be of a later one.
                        assert [answer.value.n for answer in answers] == [float(answer.epoch) for answer in answers]
                        assert min(answer.epoch for answer in answers) >= max(before, last)
                        last, done = max(answer.epoch for answer in answers), done + 1

            readers = [asyncio.ensure_future(read(proxy.address)) for proxy in (first, second, first)]
            while len(killed) < 12:
                for _ in range(choose.randrange(1, 6)):
                    await server.commit(dict.fromkeys(KEYS, row(float(committed + 1))))
                    committed += 1
                alive = [of for of in readers_of(server) if of not in killed]
                if alive:
                    killed.append(choose.choice(alive))
                    os.kill(pid_of(killed[-1]), signal.SIGKILL)
                before = done
                await eventually(lambda: done > before + 3 or any(of.done() for of in readers), LONG_SECONDS)  # noqa: B023
                assert not any(of.done() for of in readers)
            await until_all_read(server, 2)
            over.set()
            await asyncio.gather(*readers)
        store = server.server._registry.tables["app", "counts"].store.beneath  # type: ignore[union-attr, attr-defined]
        # Of those who were killed nothing is left, and a store of forty rows is as small as it was.
        assert store.forget_ended_readers() == 0
        assert store.size().bytes < 4 << 20


async def test_a_server_that_is_killed_takes_its_readers_along_and_its_store_is_whole(tmp_path: Path) -> None:
    for round_number in range(3):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.killable_readers", str(tmp_path / f"stores-{round_number}")),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(LONG_SECONDS):
                port, reader = map(int, (await process.stdout.readline()).split())
            read = 0
            async with calling(port) as caller:
                await caller.open()
                while read < 10:
                    caller.send(pb.LookupRequest(frame=1, state=COUNTS, keys=[A]))
                    answer = await caller.next()
                    read = answer.sources[0].epoch
                    assert list(answer.values) == [row(float(read))]
                process.kill()
                assert await caller.is_over()
            await eventually(lambda: not lives(reader), LONG_SECONDS)  # noqa: B023
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        # Another server takes the directory at once, and finds there what was read, or a later epoch; and no reader.
        engine = LmdbEngine(StoreLimits(tmp_path / f"stores-{round_number}", LIMIT_BYTES))
        store = engine.open("app", "counts", descriptor().topic_id)
        snapshot = store.snapshot()
        (epoch,) = {position.epoch for position in snapshot.positions().values()}
        snapshot.close()
        assert epoch >= read
        assert content(store) == {key("a"): row(float(epoch))}
        assert store.forget_ended_readers() == 0
        engine.close()
