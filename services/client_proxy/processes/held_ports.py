"""Ports that several processes of one proxy listen on, and nobody else.

Processes of one user that all set SO_REUSEPORT may share a port, so that two proxies by mistake would share their
connections at random. The parent therefore looks whether it could listen alone, and then binds the port without
listening: the kernel gives such a socket no connection. Linux lets the children listen beside it, refuses any other
proxy's look, and keeps the port while all children are being started again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from keyhole.addresses import joined, parted, port_taken


@contextmanager
def held_address(what: str, address: str) -> Iterator[str]:
    """As `held_port`, of host:port. Yields it with the port; empty stays empty."""
    if not address:
        yield ""
        return
    host, port = parted(address, f"the address of {what}")
    with held_port(what, host, port) as held:
        yield joined(host, held)


@contextmanager
def held_port(what: str, host: str, port: int) -> Iterator[int]:
    """Holds a port for the children of this process. Yields its number.

    Args:
        what: Will listen there, for the message.
        port: 0: any free one.

    Raises:
        PortTaken: Somebody else has it, or the host is not this machine's.
    """
    with ExitStack() as held:
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            addresses = list(dict.fromkeys((family, address[0]) for family, *_, address in found))
            absent: OSError | None = None
            sockets = []
            for family, name in addresses:
                try:
                    sockets.append(held.enter_context(_hold(family, str(name), port)))
                except OSError as error:
                    # "localhost" is ::1 as well, also where there is no IPv6.
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    absent = error
                else:
                    port = sockets[-1].getsockname()[1]
            if absent is not None and not sockets:
                raise absent
        except OSError as error:
            raise port_taken(what, joined(host, port)) from error
        yield port


@contextmanager
def _hold(family: socket.AddressFamily, name: str, port: int) -> Iterator[socket.socket]:
    if port:
        # As a server does that shares with nobody: connections of an earlier one that linger are no matter.
        with _socket(family, shared=False) as alone:
            alone.bind((name, port))
            alone.listen()
    with _socket(family, shared=True) as bound:
        bound.bind((name, port))
        # From here on nobody may listen who does not share; while it bound, lingering connections had to be no matter.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        yield bound


def _socket(family: socket.AddressFamily, *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
    return made
