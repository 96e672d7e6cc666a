"""What every discovery does, and the one that does nothing: a fixed list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from keyhole.discovery.parse import checked_address
from keyhole.errors import InvalidConfiguration


class Discovery(Protocol):
    """The addresses of the servers, as they are now and after every change."""

    def addresses(self) -> AsyncIterator[frozenset[str]]:
        """The whole set of host:port, at once and after every change; never ends by itself.

        A server that is missing from a set is gone for good: whoever iterates lets go of it. What can't be asked for a
        while (a DNS server) repeats no set, and raises nothing.

        Raises:
            InvalidConfiguration: Nothing was ever known, and the source has refused to answer.
        """


class StaticDiscovery:
    """A fixed list.

    Args:
        servers: host:port, at least one.

    Raises:
        InvalidConfiguration: None, or one that is not host:port.
    """

    def __init__(self, servers: Iterable[str]) -> None:
        self._servers = frozenset(servers)
        if not self._servers:
            raise InvalidConfiguration("the list of state servers is empty; name at least one as host:port")
        for server in sorted(self._servers):
            checked_address(server)

    async def addresses(self) -> AsyncIterator[frozenset[str]]:
        yield self._servers
        await asyncio.Event().wait()
