"""A state server with reader processes inside a test's event loop, and callers of whichever process serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from keyhole.stores.base import StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.testing.changelog import MemoryKafka
from services.state_server.readers.group import ReaderGroup
from services.state_server.readers.reader_process import ReaderProcess
from tests.support.lookup_ports import HAS_LOOKUP_PORT
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually

LIMIT_BYTES = 1 << 30


@asynccontextmanager
async def read_by(
    directory: Path,
    processes: int = 2,
    name: str = "server-a",
    kafka: MemoryKafka | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[RunningServer]:
    """A server on LMDB, once all of its readers take connections."""
    engine = LmdbEngine(StoreLimits(directory, LIMIT_BYTES))
    given = {**HAS_LOOKUP_PORT, "reader_processes": processes, **(settings or {})}
    async with state_server(name, kafka, engine, security=given) as server:  # type: ignore[arg-type]
        await until_all_read(server, processes - 1)
        yield server


def group_of(server: RunningServer) -> ReaderGroup:
    """Its readers."""
    group = server.server._readers
    assert group is not None
    return group


def readers_of(server: RunningServer) -> list[ReaderProcess]:
    """Those that take connections."""
    return [of for of in group_of(server)._readers if of.started.is_set()]


async def until_all_read(server: RunningServer, count: int) -> None:
    """Returns once so many readers take connections."""
    await eventually(lambda: len(readers_of(server)) == count, LONG_SECONDS)


def pid_of(reader: ReaderProcess) -> int:
    return reader._process.pid


def lives(pid: int) -> bool:
    """Whether it does: one that nobody has waited for has a number still."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def port_of(server: RunningServer) -> int:
    """Its lookup port."""
    registry = server.server._registry
    assert registry is not None
    return registry.lookup_port


def passed_on(server: RunningServer) -> int:
    """How many frames its readers have passed on, as far as they have reported."""
    registry = server.server._registry
    assert registry is not None
    return registry.counts.passed_on


async def until_reported(server: RunningServer) -> None:
    """Returns once each reader has reported what it has counted until now."""
    before = {of: of.last for of in readers_of(server)}
    for _ in range(2):  # what is reported next may be of before
        before = {of: of.last for of in before}
        await eventually(lambda: all(of.last is not last for of, last in before.items()), LONG_SECONDS)  # noqa: B023
