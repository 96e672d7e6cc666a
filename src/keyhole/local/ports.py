"""Free TCP ports on loopback, and whether one is taken."""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
from pathlib import Path

from keyhole.errors import PortTaken

# Below Linux's and macOS's ephemeral ports: nobody's outgoing connection takes one of these between a broker's kill
# and its restart on the same port.
_FIRST, _LAST = 15_000, 32_000
_ATTEMPTS = 200


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
    """`count` different ports that are free now, at random so that two callers at a time hardly choose the same.

    Raises:
        PortTaken: There are not as many.
    """
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _ATTEMPTS + count):
        if is_free(port, host):
            found.append(port)
        if len(found) == count:
            return found
    raise PortTaken(f"no {count} free ports found between {_FIRST} and {_LAST} on {host}", host=host)


class Reservations(contextlib.ExitStack):
    """Ports that this process has chosen, for servers that take a while to start. Until it is closed, or ends, others
    who ask here pass them over. Not thread-safe.

    Args:
        folder: Of all who are not to choose the same. Made if absent; where it can't be, nothing is reserved.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def choose(self, wanted: int, host: str = "127.0.0.1") -> int:
        """The wanted port, or another one where it isn't free, or somebody's who hasn't taken it yet."""
        return wanted if is_free(wanted, host) and self._reserve(wanted) else free_ports(1, host)[0]

    def _reserve(self, port: int) -> bool:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = self.enter_context((self._folder / f"{port}.lock").open("a"))
        except OSError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
