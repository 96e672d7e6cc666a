"""`python -m services.state_server.readers.reader_child PAIR CONNECTIONS COUNT`: one reader. Only the server starts it.

All three are descriptors: of the pair of sockets to the server, of the one by which connections come, and of the memory
of the SharedCount. The settings are in the environment.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from keyhole import logs
from keyhole.clock import SystemClock
from keyhole.config import StateServerConfig, load
from keyhole.rpc.lookup_port import LookupPort
from keyhole.rpc.read_admission import ReadAdmission, ReadLimits
from keyhole.rpc.server import run
from keyhole.security.guard import PortGuard
from keyhole.stores.lmdb.engine import LmdbReader
from services.state_server.readers.counted import ReaderCounts
from services.state_server.readers.read_tables import ReadTables
from services.state_server.readers.reader_frames import ReaderFrames
from services.state_server.readers.reader_link import ReaderLink
from services.state_server.readers.reader_settings import share_of
from services.state_server.readers.reader_words import AskReader, Drain, End, ReaderStarted, Shown
from services.state_server.readers.shared_count import SharedCount

_BYTES = 1  # of the message that a connection comes with


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Returns the process's exit code."""
    logs.tell_crashes()
    pair, connections, count = map(int, arguments)
    config = load(StateServerConfig, environ)
    logs.configure(config.log_level)
    return run(_until_ended(config, pair, connections, count))


async def _until_ended(config: StateServerConfig, pair: int, connections: int, count: int) -> int:
    loop = asyncio.get_running_loop()
    # It goes on until the server says so, which still answers while it drains.
    for ignored in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ignored, lambda: None)
    for inherited in (connections, count):
        os.set_inheritable(inherited, False)
    link, clock = await ReaderLink.open(pair), SystemClock()
    for handler in logging.getLogger().handlers:
        handler.addFilter(functools.partial(_numbered, link.begin.number))
    tables = ReadTables(config.id, SharedCount(count), clock, LmdbReader)
    counts = ReaderCounts(tables.reads)
    admission = ReadAdmission(ReadLimits.of(share_of(config, link.begin.count)), clock, "this server")
    guard = PortGuard("state-server", config.host, config)
    guard.counted_by(counts.counts.refusals.note)
    frames = ReaderFrames(tables, counts, clock, link.pass_on)
    port = LookupPort(config.lookups, frames.frame, admission, clock, guard, incarnation=link.begin.incarnation)
    port.begin()
    coming = _Coming(connections, port)
    started = False
    async for word in link.words():
        if isinstance(word, Shown):
            tables.take(word)
            if not started:
                started = True
                coming.begin()
                link.say(ReaderStarted())
        elif isinstance(word, AskReader):
            link.say(counts.taken(admission, coming.ended, tables.behind))
        elif isinstance(word, Drain):
            coming.end()
            port.drain()
        elif isinstance(word, End):
            break
    coming.end()
    await port.stop()
    link.say(counts.taken(admission, coming.ended))
    await link.close()
    tables.close()
    return 0


class _Coming:
    """The connections that the server gives to this process."""

    def __init__(self, descriptor: int, port: LookupPort) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._port = port
        self._taken = 0

    @property
    def ended(self) -> int:
        """How many of those that came have ended."""
        return self._taken - self._port.open_connections

    def begin(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._take)

    def end(self) -> None:
        """No more are taken but those that the server has given already: they would hear nothing. Idempotent."""
        if asyncio.get_running_loop().remove_reader(self._socket):
            self._take()

    def _take(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._socket, _BYTES, 1)
            except (BlockingIOError, InterruptedError):
                return
            if not message:  # the server is gone, as the other socket will say
                asyncio.get_running_loop().remove_reader(self._socket)
                return
            self._taken += 1  # also where this process can't have another descriptor: it has ended then
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                connection.setblocking(False)
                self._port.take(connection)


def _numbered(number: int, record: logging.LogRecord) -> bool:
    record.reader_process = number
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
