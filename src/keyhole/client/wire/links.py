"""Whom a client asks: a connection to each of its targets, which of them is next, and when a lost one is asked again.

Reads change nothing, so one that was cut off is sent again: to another target at once, or, where there is none, to the
one that may be asked first again. How long a target is left alone grows with each time that it is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc

from keyhole.backoff import JITTER, Backoff
from keyhole.client.wire.cut_off import is_cut_off, told
from keyhole.client.wire.each_address import misplaced
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.errors import Draining, KeyholeError
from keyhole.rpc import channels, status
from keyhole.rpc.rotation import Renewing
from keyhole.v1 import query_pb2_grpc

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.05, 1.0
# From the end of a look at the addresses of a target to the next one.
_LOOK_SECONDS = 1.0


class Link:
    """A connection to one target. Used from the event loop's thread only.

    Attributes:
        target: Its address.
        stub: Of the service Query.
        stream: Of its lookups.
        cause: Why it was lost; None: it has been heard since, or was never asked.
        until: While it is lost: it is left alone until then, on the event loop's clock.
    """

    def __init__(self, target: str, shown: Renewing | None, *, alone: bool) -> None:
        self.target = target
        self._shown = shown
        self._channel = channels.prepared_aio_channel(target, shown, alone=alone)
        # The generated stubs are typed for both APIs at once.
        self.stub: Any = query_pb2_grpc.QueryStub(self._channel)
        self.stream = LookupStream(self._channel, target, heard=self.heard, broken=self.lost, refused=self._is_there)
        self.cause: KeyholeError | None = None
        self.until = 0.0
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS)
        self._loop = asyncio.get_running_loop()
        # What one of its addresses turned out to be at the last look, as long as no proxy has ever answered; see
        # each_address.
        self._misplaced: KeyholeError | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_from = 0.0
        self._has_answered = self._closed = False

    def heard(self) -> None:
        """The proxy behind it has answered: the next failure begins with the shortest pause."""
        self._is_there()
        if self.cause is not None:
            self.cause = None
            self._backoff.reset()

    def _is_there(self) -> None:
        """A proxy has said something, if only that it goes or refuses: whatever else its name stands for."""
        if self._misplaced is not None and self.cause is self._misplaced:
            self.cause = None
        self._has_answered, self._misplaced = True, None

    def lost(self, error: KeyholeError) -> None:
        """It is left alone for a while, if that is why it has not answered. Many may notice at the same time."""
        now = self._loop.time()
        if is_cut_off(error) and (self.cause is None or now >= self.until):
            last = status.is_last_of_several(error)
            self.cause, self.until = (self._misplaced if last else None) or error, now + self._backoff.next()
            may_look = not (self._has_answered or self._closed) and self._looking is None and now >= self._look_from
            if may_look and last:
                self._looking = self._loop.create_task(self._look(error))

    async def _look(self, error: KeyholeError) -> None:
        """Finds out what is behind each address now. `error`: What gRPC has said of the last one."""
        try:
            found = await misplaced(self.target, self._shown)
            if self._has_answered:
                return
            if found is not None:
                # Nobody has answered since: it is lost, or about to be.
                self.cause = found
            elif self._misplaced is not None and self.cause is self._misplaced:
                self.cause = error
            self._misplaced = found
        except Exception:  # noqa: BLE001 - the top of a task: what gRPC has said stays
            _log.exception("the addresses of a target could not be looked at", extra={"target": self.target})
        finally:
            # What stands there may change: a proxy that begins beside it, or a port that is another's by now.
            self._looking, self._look_from = None, self._loop.time() + _LOOK_SECONDS

    def failed(self, error: grpc.RpcError) -> KeyholeError:
        """What ended one of its calls. What it says of others, of a server behind a proxy, does not make it lost."""
        why = status.from_rpc_error(error, self.target)
        sent = status.was_sent(error)
        if sent:
            self._is_there()
        if isinstance(why, Draining) or not sent:
            self.lost(why)
        return why

    def is_free(self, now: float) -> bool:
        """Whether it may be asked, though it was lost: nobody waits for it while another one can be asked."""
        if now < self.until:
            return False
        state: grpc.ChannelConnectivity = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        self.until = now + _FIRST_PAUSE_SECONDS
        return False

    async def close(self, error: KeyholeError) -> None:
        """Closes the link: lookups that are under way fail with the error, and calls are cancelled."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.stream.close(error)
        await self._channel.close()


class Links:
    """Those of one client. Used from the event loop's thread only.

    Args:
        targets: At least one.
        shown: For each of them, what it is shown.
    """

    def __init__(self, targets: Sequence[str], shown: Sequence[Renewing | None]) -> None:
        alone = len(targets) == 1
        self._links = [Link(target, of, alone=alone) for target, of in zip(targets, shown, strict=True)]
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[KeyholeError] = self._loop.create_future()

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
            error: Of the last attempt, which is told where it says why.
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
        await asyncio.gather(*(link.close(error) for link in self._links))


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
            raise told(why, self._count, None)
        if link.cause is None:
            # It lives: what it has said may be so for another moment.
            await self._pause(self._loop.time() + pause_seconds(), error)

    def told(self, error: KeyholeError) -> KeyholeError:
        """What the caller gets: the error, and what came before it."""
        return told(error, self._count, self._before)

    async def _pause(self, until: float, why: KeyholeError | None) -> None:
        if until >= self._deadline and why is not None:
            raise told(why, self._count, None)
        await self._links.pause(until)


def pause_seconds() -> float:
    """Before something is asked again of somebody who lives."""
    return JITTER.uniform(0.5, 1.0) * _FIRST_PAUSE_SECONDS


def _owed(link: Link) -> int:
    return link.stream.keys


def _until(link: Link) -> float:
    return link.until
