"""Free TCP ports on loopback, and whether one is taken."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import socket
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Self

from keyhole.caches import cache_dir
from keyhole.errors import PortTaken

# Below Linux's and macOS's ephemeral ports: nobody's outgoing connection takes one of these between a broker's kill
# and its restart on the same port.
_FIRST, _LAST = 15_000, 32_000
_ATTEMPTS = 200
_CLAIMS_KEPT = 4_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now. Someone else may take it a moment later."""
    with socket.socket() as probe:
        # As servers do it: connections in TIME_WAIT don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody answers on the port. Blocks for at most a second."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that are free now, at random.

    They are this process's until it ends (or has asked for thousands more). No process of this user that asks here gets
    one of them again, though its server starts later, or is killed and started again.

    Raises:
        PortTaken: There are not as many.
    """
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _ATTEMPTS + count):
        if is_free(port, host) and _claims().take(port):
            found.append(port)
        if len(found) == count:
            return found
    raise PortTaken(f"no {count} free ports found between {_FIRST} and {_LAST} on {host}", host=host)


class Reservations:
    """Ports that this process has chosen, for servers that take a while to start. Until it is closed, or the process
    ends, all others of this user who ask here pass them over. Not thread-safe.
    """

    def __init__(self) -> None:
        self._ports: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._ports:
            _claims().give_back(self._ports.pop())

    def choose(self, wanted: int, host: str = "127.0.0.1") -> int:
        """The wanted port, or another one where it isn't free, or somebody's who hasn't taken it yet. 0: any."""
        if not (wanted and is_free(wanted, host) and _claims().take(wanted)):
            (wanted,) = free_ports(1, host)
        self._ports.append(wanted)
        return wanted


class Claims:
    """Which ports this process has chosen. Thread-safe.

    Each is a lock on one byte of a file that all processes of a user have in common. The operating system gives these
    locks back when their process ends, however it ends, and a child that was forked has none of them.

    Args:
        file: Made if absent. Where it can't be, nothing is claimed: a process then knows of its own ports alone.
    """

    def __init__(self, file: Path) -> None:
        self._path = file
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._file: int | None = None
        self._ports: OrderedDict[int, None] = OrderedDict()  # as they were taken

    def take(self, port: int) -> bool:
        """Claims the port. False: it is another process's, or was taken here before."""
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._ports.clear()
            if port in self._ports or not self._locked(port):
                return False
            self._ports[port] = None
            if len(self._ports) > _CLAIMS_KEPT:
                self._unlock(self._ports.popitem(last=False)[0])
            return True

    def give_back(self, port: int) -> None:
        """Others may be given the port from now on. One that isn't claimed is passed over."""
        with self._lock:
            if port in self._ports:
                del self._ports[port]
                self._unlock(port)

    def _locked(self, port: int) -> bool:
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # Never closed: a process that closes any descriptor of a file gives back all its locks on it.
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(self, port: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)


@functools.cache
def _claims() -> Claims:
    try:
        folder = cache_dir(os.environ, "ports")
    except RuntimeError:  # a user without a home: nothing can be kept
        folder = Path(os.devnull)
    return Claims(folder / "claims")
