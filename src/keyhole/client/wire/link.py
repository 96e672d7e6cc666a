"""A client's connection to one proxy: what is under way there, why it was lost, and when it is asked again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc

from keyhole.backoff import Backoff
from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.each_address import misplaced
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.errors import Draining, KeyholeError
from keyhole.rpc import status
from keyhole.rpc.rotation import Renewing
from keyhole.v1 import query_pb2_grpc

_log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
"""Before one that was lost is asked again, the first time."""
_MOST_PAUSE_SECONDS = 1.0
# A watch may be under way for as long as there is somebody who answers it.
_UNDER_WAY_SECONDS = 1e6
# From the end of a look at the addresses of a target to the next one.
_LOOK_SECONDS = 1.0


class Link:
    """A connection to one target, or to one address of its name. Used from the event loop's thread only.

    Args:
        channel: To it; closed with the link.
        shown: For a look at each of its addresses.
        answered: Called once, when a proxy has said something there.

    Attributes:
        target: Its address.
        stub: Of the service Query.
        stream: Of its lookups.
        cause: Why it was lost; None: it has been heard since, or was never asked.
        until: While it is lost: it is left alone until then, on the event loop's clock.
    """

    def __init__(
        self,
        target: str,
        channel: grpc.aio.Channel,
        shown: Renewing | None,
        *,
        answered: Callable[[], None] | None = None,
    ) -> None:
        self.target = target
        self._shown = shown
        self._channel = channel
        self._answered = answered
        # The generated stubs are typed for both APIs at once.
        self.stub: Any = query_pb2_grpc.QueryStub(self._channel)
        self.stream = LookupStream(self._channel, target, heard=self.heard, broken=self.lost, refused=self._is_there)
        self.cause: KeyholeError | None = None
        self.until = 0.0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS)
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
        if self._answered is not None:
            self._answered()
            self._answered = None
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
        if self.is_connected():
            return True
        self.until = now + FIRST_PAUSE_SECONDS
        return False

    def is_connected(self, *, connect: bool = True) -> bool:
        """Whether a call needn't wait for a connection. Where there is none, one begins to be made, if it is to."""
        state: grpc.ChannelConnectivity = self._channel.get_state(try_to_connect=connect)
        return state is grpc.ChannelConnectivity.READY

    async def let_go(self, error: KeyholeError) -> None:
        """Closes it once what is under way has ended: gRPC would cancel a call, which no caller would expect. Lookups
        that are under way fail with the error. `close` goes first.
        """
        await self.stream.close(error)
        await self._channel.close(_UNDER_WAY_SECONDS)

    async def close(self, error: KeyholeError) -> None:
        """Closes the link: lookups that are under way fail with the error, and calls are cancelled."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.stream.close(error)
        await self._channel.close()
        self._answered = None  # it knows who knows this link
