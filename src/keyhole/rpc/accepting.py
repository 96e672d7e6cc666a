"""A port whose connections are given away as they come, as sockets: to whoever is to serve them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from keyhole.addresses import joined, port_taken

_log = logging.getLogger(__name__)

_BACKLOG = 100
# Until it is looked again whether there is room for more connections.
_FULL_SECONDS = 1.0
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Accepting:
    """Listens on a port. Make and use it inside the running event loop.

    Args:
        what: Listens there, for messages.
        port: 0: any free one.
        take: Is given each connection, and has to close it.

    Raises:
        PortTaken: Somebody else has it, or the host is not this machine's.
    """

    def __init__(self, what: str, host: str, port: int, take: Callable[[socket.socket], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._later: dict[socket.socket, asyncio.TimerHandle] = {}
        self.port = port
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            absent: OSError | None = None
            for family, name in dict.fromkeys((family, str(address[0])) for family, *_, address in found):
                try:
                    self._listen(family, name)
                except OSError as error:
                    # "localhost" is ::1 as well, also where there is no IPv6.
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    absent = error
            if absent is not None and not self._sockets:
                raise absent
        except OSError as error:
            # Nothing is taken of them: whoever has connected to one was not to reach it.
            for listening in self._sockets:
                listening.close()
            raise port_taken(what, joined(host, port)) from error
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _listen(self, family: int, name: str) -> None:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.setblocking(False)
            listening.bind((name, self.port))
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        self._sockets.append(listening)
        self.port = listening.getsockname()[1]

    def close(self) -> None:
        """Takes no more connections but those that wait here already: the kernel would reset them. Those that can't be
        taken, it does. Idempotent.
        """
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening)
            try:
                # Also where there was no room for more: there may be by now.
                self._accept(listening)
            except OSError as error:
                _log.error("connections that waited can't be taken", extra={"reason": error.strerror or str(error)})
            finally:
                listening.close()
        for timer in self._later.values():
            timer.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BACKLOG + 1):  # as many as the kernel keeps
            try:
                connection, _ = listening.accept()
            except ConnectionAbortedError:  # whoever has connected has gone; others stand behind
                continue
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _log.error("no connection can be taken for now", extra={"reason": error.strerror})
                if listening not in self._sockets:  # it is being closed
                    return
                self._loop.remove_reader(listening)
                self._later[listening] = self._loop.call_later(
                    _FULL_SECONDS, self._loop.add_reader, listening, self._accept, listening
                )
                return
            connection.setblocking(False)
            self._take(connection)
