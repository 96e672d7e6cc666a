"""Whom a client asks: a connection to each of its targets, which of them is next, and when a lost one is asked again.

Reads change nothing, so one that was cut off is sent again: to another target at once, or, where there is none, to the
one that may be asked first again. How long a target is left alone grows with each time that it is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from keyhole.backoff import JITTER
from keyhole.client.wire.cut_off import error_for_caller
from keyhole.client.wire.each_address import addresses_of
from keyhole.client.wire.link import FIRST_PAUSE_SECONDS, Link
from keyhole.client.wire.target_links import DEFAULT_EVERY_SECONDS, Resolve, TargetLinks
from keyhole.errors import KeyholeError
from keyhole.rpc import status
from keyhole.rpc.rotation import Renewing


class Links:
    """Those of one client. Used from the event loop's thread only.

    Args:
        targets: At least one.
        shown: For each of them, what it is shown.
        resolve: Finds the addresses of a target.
        every_seconds: How often those of a name are looked for.
    """

    def __init__(
        self,
        targets: Sequence[str],
        shown: Sequence[Renewing | None],
        resolve: Resolve = addresses_of,
        every_seconds: float = DEFAULT_EVERY_SECONDS,
    ) -> None:
        alone = len(targets) == 1
        self._targets = [
            TargetLinks(target, of, resolve, every_seconds, alone=alone, changed=self._arrange)
            for target, of in zip(targets, shown, strict=True)
        ]
        self._links: list[Link] = []
        self._arrange()
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[KeyholeError] = self._loop.create_future()

    def _arrange(self) -> None:
        """Those that a target has no more go, and what it has besides comes last; the others keep their turn."""
        now = [link for target in self._targets for link in target.links]
        kept = [link for link in self._links if link in now]
        self._links = [*kept, *(link for link in now if link not in kept)]

    def next(self) -> Link | None:
        """Whom to ask now: of those that answer, the one that owes the fewest keys. None: all are left alone."""
        links = self._links
        first = links[0]
        if len(links) == 1:
            return first if first.cause is None or first.until <= self._loop.time() else None
        now = self._loop.time()
        if all(link.cause is not None for link in links):
            best = min(links, key=_until)
            if best.until > now:
                return None
        else:
            best = min((link for link in links if link.cause is None or link.is_free(now)), key=_owed)
        # Of those that owe the same, the others come first the next time.
        links.remove(best)
        links.append(best)
        return best

    def free_at(self) -> float:
        """When the first of those that are left alone may be asked again."""
        return min(link.until for link in self._links)

    @property
    def cause(self) -> KeyholeError | None:
        """Why one of them was lost; None: none is."""
        return next((link.cause for link in self._links if link.cause is not None), None)

    def given_up(self, error: KeyholeError) -> KeyholeError | None:
        """Why there is nothing to wait for: all of them speak differently, or don't trust this side. None: there is.

        Args:
            error: Of the last attempt, which the caller gets where it says why.
        """
        if not all(link.cause is not None and not status.may_pass(link.cause) for link in self._links):
            return None
        return self.cause if status.may_pass(error) else error

    async def pause(self, until: float) -> None:
        """Raises KeyholeError: What `close` was given, as soon as it was."""
        await asyncio.wait([self._closed], timeout=max(0.0, until - self._loop.time()))
        if self._closed.done():
            raise self._closed.result()

    async def close(self, error: KeyholeError) -> None:
        """What is under way fails with the error, and so does what waits to be sent again. Called once."""
        self._closed.set_result(error)
        await asyncio.gather(*(target.close(error) for target in self._targets))
        # They know this: without them gRPC's thread is gone with the last one who uses a link.
        self._targets.clear()


class CallAttempts:
    """Those of one call, until it has its answer or there is no time for another.

    Args:
        deadline: On the event loop's clock.
    """

    def __init__(self, links: Links, deadline: float) -> None:
        self._links = links
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._before: KeyholeError | None = None

    async def link(self) -> Link:
        """Whom to ask now. Raises KeyholeError: There is nobody in time."""
        while (link := self._links.next()) is None:
            await self._pause(self._links.free_at(), self._before or self._links.cause)
        self._count += 1
        return link

    async def again(self, error: KeyholeError, link: Link) -> None:
        """Waits until it may be sent again. Raises KeyholeError: It can't be any more."""
        self._before = error
        if (why := self._links.given_up(error)) is not None:
            raise error_for_caller(why, self._count, None)
        if link.cause is None:
            # It lives: what it has said may be so for another moment.
            await self._pause(self._loop.time() + pause_seconds(), error)

    def error_for_caller(self, error: KeyholeError) -> KeyholeError:
        """What the caller gets: the error, and what came before it."""
        return error_for_caller(error, self._count, self._before)

    async def _pause(self, until: float, why: KeyholeError | None) -> None:
        if until >= self._deadline and why is not None:
            raise error_for_caller(why, self._count, None)
        await self._links.pause(until)


def pause_seconds() -> float:
    """Before something is asked again of somebody who lives."""
    return JITTER.uniform(0.5, 1.0) * FIRST_PAUSE_SECONDS


def _owed(link: Link) -> int:
    return link.stream.keys


def _until(link: Link) -> float:
    return link.until
