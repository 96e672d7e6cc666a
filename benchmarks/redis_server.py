"""A Redis of our own on loopback, in a directory of its own; gone when the benchmark ends."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from keyhole.errors import MachineError
from keyhole.local.ports import accepts, free_ports
from keyhole.local.processes import Child

_START_SECONDS = 30


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[tuple[int, int]]:
    """Its port and process id. It logs each write, and hands the log to the disk once a second, as is usual.

    Raises:
        MachineError: It isn't installed, or didn't start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise MachineError(
            "there is no redis-server on PATH; install it (Debian, Ubuntu: apt-get install redis-server; "
            "macOS: brew install redis)"
        )
    directory.mkdir()
    (port,) = free_ports(1)
    settings = {"port": str(port), "bind": "127.0.0.1", "dir": str(directory), "daemonize": "no", "save": ""}
    settings |= {"appendonly": "yes", "appendfsync": "everysec"}
    command = [program, *(word for name, value in settings.items() for word in (f"--{name}", value))]
    child = Child("Redis", command, log=directory / "redis.log", environ=dict(os.environ), directory=directory)
    try:
        child.wait_healthy(lambda: accepts(port), _START_SECONDS)
        yield port, child.pid
    finally:
        child.terminate()
