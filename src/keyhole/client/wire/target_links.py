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
from keyhole.client.wire.link import Link
from keyhole.errors import KeyholeError, ServerLost
from keyhole.rpc import channels
from keyhole.rpc.rotation import Renewing

_log = logging.getLogger(__name__)

DEFAULT_EVERY_SECONDS = 5.0
# Of many proxies each client has some, by chance: a connection of each to all of them would be too many.
_MOST = 8
# Between two looks whether an address is connected to, and for how long: some may never be from this machine, such as
# those of IPv6, and are in the way of none that is.
_FIRST_LOOK_SECONDS, _MOST_LOOK_SECONDS, _LOOKING_SECONDS = 0.05, 1.0, 4.0
# Any other target is one host.
_OF_SEVERAL_ADDRESSES = ("dns:", "ipv4:", "ipv6:")

Resolve: TypeAlias = Callable[[str], Awaitable[tuple[str, list[str]]]]
"""The addresses of a target, each as gRPC takes it, and the name that all of them are asked by. None: it can't tell."""


class TargetLinks:
    """Those of one target. Used from the event loop's thread only.

    Args:
        resolve: Finds the addresses of the target.
        every_seconds: How often it is asked.
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
        # Those that are asked no more, and what is under way there.
        self._gone: dict[Link, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def links(self) -> list[Link]:
        """Whom to ask, one of them at a time: the addresses that were connected to, or the name."""
        return list(self._of_addresses.values()) or [self._of_name]

    def _answered(self) -> None:
        """Until then gRPC tries all addresses, and what is wrong with them is told of the target as a whole."""
        if not self._closed and self._target.startswith(_OF_SEVERAL_ADDRESSES):
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while True:
                name, addresses = await self._resolve(self._target)
                self._found(name, addresses)
                await asyncio.sleep(self._every_seconds * JITTER.uniform(0.75, 1.0))
        except Exception:  # noqa: BLE001 - the top of a task: the links that there are stay
            _log.exception("the addresses of a target could not be followed", extra={"target": self._target})

    def _found(self, name: str, addresses: list[str]) -> None:
        """What an answer lacks goes once it does not answer: answers may be cut short, and proxies drain."""
        known = self._of_addresses
        if not addresses or (len(addresses) == 1 and not known):
            return
        for address in self._connecting.keys() - set(addresses):
            self._connecting.pop(address).cancel()
        for address in [of for of, link in known.items() if of not in addresses and not _is_well(link)]:
            self._let_go(known.pop(address))
        new = [address for address in addresses if address not in known and address not in self._connecting]
        room = _MOST - sum(map(_is_well, known.values())) - len(self._connecting)
        for address in JITTER.sample(new, max(0, min(len(new), room))):
            self._connecting[address] = asyncio.get_running_loop().create_task(self._connect(address, name))
        self._changed()

    async def _connect(self, address: str, name: str) -> None:
        """Nobody asks it before it can answer. One that can't be connected to in time has its turn again later."""
        loop = asyncio.get_running_loop()
        looks, until, link = Backoff(_FIRST_LOOK_SECONDS, _MOST_LOOK_SECONDS), loop.time() + _LOOKING_SECONDS, None
        try:
            link = Link(address, channels.aio_channel_to(address, name, self._shown), self._shown)
            while not link.is_connected():  # as rarely as connections are made
                if loop.time() > until:
                    return
                await asyncio.sleep(looks.next())
            self._of_addresses[address], link = link, None
            self._changed()
        except Exception:  # noqa: BLE001 - the top of a task: the others stay
            _log.exception("an address of a target could not be connected to", extra={"target": self._target})
        finally:
            if self._connecting.get(address) is asyncio.current_task():
                del self._connecting[address]
            if link is not None:
                self._let_go(link)

    def _let_go(self, link: Link) -> None:
        error = ServerLost(f"{link.target} is no address of {self._target} any more")
        self._gone[link] = ending = asyncio.get_running_loop().create_task(link.let_go(error))
        ending.add_done_callback(lambda _: self._gone.pop(link, None))

    async def close(self, error: KeyholeError) -> None:
        """What is under way fails with the error."""
        self._closed = True
        tasks = [*self._connecting.values(), *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gone = dict(self._gone)
        links = (self._of_name, *self._of_addresses.values(), *gone)
        await asyncio.gather(*(link.close(error) for link in links))
        await asyncio.gather(*gone.values(), return_exceptions=True)


def _is_well(link: Link) -> bool:
    return link.cause is None and link.is_connected(connect=False)
