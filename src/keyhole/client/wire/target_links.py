"""A client's links to one target: to its name at first, and to each of its addresses once a proxy has answered there.

gRPC connects to one address of a name, and a client's lookups travel in one stream. So a client that asks `dns:///proxies`
would leave all proxies but one idle, and lose what is under way there whenever that one goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from keyhole.backoff import JITTER, Backoff
from keyhole.client.wire.each_address import addresses_of
from keyhole.client.wire.link import Link
from keyhole.errors import KeyholeError, ServerLost
from keyhole.rpc import channels
from keyhole.rpc.rotation import Renewing

__all__ = ["DEFAULT_EVERY_SECONDS", "Resolve", "TargetLinks", "addresses_of"]

_log = logging.getLogger(__name__)

DEFAULT_EVERY_SECONDS = 5.0
# Of many proxies each client has some, by chance: a connection of each to all of them would be too many.
_MOST = 8
# Between two looks whether an address is connected to. Some may never be from this machine, such as those of IPv6.
_FIRST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.05, 5.0
# A name whose addresses may be others the next time, and addresses that are written out. Any other target is one host.
_NAMES, _WRITTEN = ("dns:",), ("ipv4:", "ipv6:")

Resolve: TypeAlias = Callable[[str], Awaitable[tuple[str, list[str]]]]
"""The addresses of a target, each as gRPC takes it, and the name that all of them are asked by. None: it can't tell."""


class TargetLinks:
    """Those of one target. Used from the event loop's thread only.

    Args:
        shown: What is shown to whoever is there.
        alone: The client has no other target.
        changed: Called whenever `links` are others.
    """

    def __init__(
        self,
        target: str,
        shown: Renewing | None,
        resolve: Resolve,
        every_seconds: float,
        *,
        alone: bool,
        changed: Callable[[], None],
    ) -> None:
        self._target = target
        self._shown = shown
        self._resolve = resolve
        self._every_seconds = every_seconds
        self._changed = changed
        # What is under way there, such as a watch, goes on when addresses have links of their own.
        channel = channels.prepared_aio_channel(target, shown, alone=alone)
        self._of_name = Link(target, channel, shown, answered=self._answered)
        self._of_addresses: dict[str, Link] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def links(self) -> list[Link]:
        """Whom to ask, one of them at a time: the addresses that were connected to, or the name."""
        return list(self._of_addresses.values()) or [self._of_name]

    def _answered(self) -> None:
        """Until then gRPC tries all addresses, and what is wrong with them is told of the target as a whole."""
        if not self._closed and self._target.startswith((*_NAMES, *_WRITTEN)):
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while True:
                name, addresses = await self._resolve(self._target)
                self._found(name, addresses)
                if self._target.startswith(_WRITTEN):
                    return
                await asyncio.sleep(self._every_seconds * JITTER.uniform(0.75, 1.0))
        except Exception:  # noqa: BLE001 - the top of a task: the links that there are stay
            _log.exception("the addresses of a target could not be followed", extra={"target": self._target})

    def _found(self, name: str, addresses: list[str]) -> None:
        """What an answer lacks goes once it is lost: answers may be cut short, and proxies drain."""
        known = self._of_addresses
        if not addresses or (len(addresses) == 1 and not known):
            return
        for address in self._connecting.keys() - set(addresses):
            self._connecting.pop(address).cancel()
        for address in [of for of, link in known.items() if of not in addresses and link.cause is not None]:
            self._let_go(known.pop(address))
        new = [address for address in addresses if address not in known and address not in self._connecting]
        room = _MOST - len(known) - len(self._connecting)
        for address in JITTER.sample(new, max(0, min(len(new), room))):
            self._connecting[address] = asyncio.get_running_loop().create_task(self._connect(address, name))
        self._changed()

    async def _connect(self, address: str, name: str) -> None:
        """Nobody asks it before it can answer."""
        link = Link(address, channels.aio_channel_to(address, name, self._shown), self._shown)
        looks = Backoff(_FIRST_LOOK_SECONDS, _MOST_LOOK_SECONDS)
        try:
            while not link.is_connected():  # noqa: ASYNC110 - as rarely as connections are made
                await asyncio.sleep(looks.next())
        except BaseException:
            self._let_go(link)
            raise
        del self._connecting[address]
        self._of_addresses[address] = link
        self._changed()

    def _let_go(self, link: Link) -> None:
        error = ServerLost(f"{link.target} is no address of {self._target} any more")
        closing = asyncio.get_running_loop().create_task(link.close(error))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self, error: KeyholeError) -> None:
        """What is under way fails with the error."""
        self._closed = True
        tasks = [*self._connecting.values(), *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = (self._of_name, *self._of_addresses.values())
        await asyncio.gather(*(link.close(error) for link in links), *self._closing)
        self._changed = _nothing  # it knows who knows this


def _nothing() -> None:
    pass
