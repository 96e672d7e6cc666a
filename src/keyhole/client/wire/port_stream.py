"""The edge of coalescing.py at a lookup port: one connection, frames out and answers in, without gRPC."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple, cast

from google.protobuf.message import DecodeError

from keyhole.client.wire.coalescing import Coalescer, Lane, Moved
from keyhole.client.wire.lookup_messages import FrameMessages
from keyhole.client.wire.segments import Segment, not_handed_out
from keyhole.errors import KeyholeError, MalformedRequest, ServerLost
from keyhole.rpc.frames import FRAME_BYTES, MAX_MESSAGE_BYTES
from keyhole.rpc.port_frames import VERSION, Incoming, packed, packed_message
from keyhole.rpc.status import from_proto
from keyhole.v1 import query_pb2

# uvloop calls timers that are due before it reads: what has come by then counts.
_UNREAD_SECONDS = 0.01


class Silence(NamedTuple):
    """For how long a lookup port that owes an answer may send nothing: half of what a read has left, within bounds.

    A server answers frames as it reads them. One that is silent for so long is as good as gone: gRPC, with its pings,
    says then what is so, and needs the other half for that.
    """

    least_seconds: float = 0.05
    most_seconds: float = 2.0


class PortStream(asyncio.Protocol):
    """One connection to a lookup port, for as long as it lasts. Used from the event loop's thread only.

    Attributes:
        opened: Done once the server has let this caller in; fails where the connection ends before.
        over: Done once the connection is over, with why: what has no answer by then is to be taken by `let_go`.
        answered: Whether it has answered anything.

    Args:
        target: Its address, for messages.
        authorization: As Renewing has it.
        heard: Called at every response, before it is handed out: the other side lives.
        incarnation: Of the server that is meant; empty: whoever is there.
        silence: After how much of it the connection is ended.
    """

    def __init__(
        self,
        target: str,
        authorization: str,
        heard: Callable[[], None],
        incarnation: str = "",
        silence: Silence = Silence(),  # noqa: B008 - a value
    ) -> None:
        self._target = target
        self._authorization = authorization
        self._heard = heard
        self._incarnation = incarnation
        self._silence = silence
        self._coalescer = Coalescer(target)
        self._messages = FrameMessages(self._coalescer)
        self._incoming = Incoming(MAX_MESSAGE_BYTES)
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.over: asyncio.Future[KeyholeError] = self._loop.create_future()
        self.answered = False
        self._transport: asyncio.Transport | None = None
        self._blocked = self._leaving = False
        self._alone = True
        self._owed = 0
        self._heard_at = 0.0
        # When it was found silent, by what was read until then; and until when it is not ended for that.
        self._silent_since, self._unread_until = -math.inf, -math.inf
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    @property
    def keys(self) -> int:
        """How many keys wait or are in flight."""
        return self._coalescer.keys

    def submit(self, lane: Lane, segment: Segment) -> None:
        """Sends a segment with a frame of this turn of the loop. As LookupStream.submit in all else."""
        self._coalescer.add(lane, segment)
        if self._alone and self._coalescer.keys == 1 and len(segment.keys[0]) <= FRAME_BYTES:
            # Whoever asks for one key after the other waits for each of them.
            self._send()
        elif self._turn is None:
            # Others ask in the same turn of the loop: frames of few keys would cost more than a turn does.
            self._turn = self._loop.call_soon(self._send_in_time)

    def let_go(self) -> Moved:
        """Once it is over: what has no answer."""
        return self._coalescer.let_go()

    def leave(self) -> None:
        """Ends it once all that it has was answered. It is given nothing more."""
        self._leaving = True
        self._end_if_left()

    def end(self, error: KeyholeError) -> None:
        """Ends it at once. Idempotent."""
        if self.over.done():
            return
        self.over.set_result(error)
        if not self.opened.done():
            self.opened.set_exception(error)
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transport is a subclass of asyncio's; it does the same.
        self._transport = cast("asyncio.Transport", transport)
        opening = query_pb2.LookupOpening(
            version=VERSION, authorization=self._authorization, incarnation=self._incarnation
        )
        self._transport.write(packed_message(opening))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(ServerLost(f"the lookup port of {self._target} closed the connection", address=self._target))

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._send_in_time()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._incoming.add(data)
        try:
            while not self.over.done() and (message := self._incoming.next()) is not None:
                self._take(query_pb2.LookupResponse.FromString(message))
        except DecodeError:
            self.end(MalformedRequest(f"the lookup port of {self._target} sent something that is no response"))
        except KeyholeError as error:
            self.end(error)
        except Exception:  # noqa: BLE001 - the top of a loop: whoever waits must hear of it
            self.end(not_handed_out(self._target))
        if self._coalescer.keys and self._turn is None and not self.over.done():
            self._turn = self._loop.call_soon(self._send_in_time)
        self._end_if_left()

    def _take(self, response: query_pb2.LookupResponse) -> None:
        if response.frame:
            self.answered, self._alone = True, len(response.values) == 1
            self._owed -= 1
            self._heard()
            self._messages.deliver(response, self._heard_at)
        elif response.failures:
            raise from_proto(response.failures[0].error)
        elif not self.opened.done():
            self.opened.set_result(None)

    def _send_in_time(self) -> None:
        """Before the timer, which may be late on a busy loop: what has expired is not sent."""
        self._coalescer.expire(self._loop.time())
        self._send()

    def _send(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self.over.done() or self._transport is None:
            return
        now = self._loop.time()
        while not self._blocked and (frame := self._coalescer.next_frame(now)) is not None:
            if not self._owed:
                self._heard_at = now
            self._owed += 1
            self._transport.write(packed(self._messages.request(frame, now)))
        self._arm_timer()

    def _arm_timer(self) -> None:
        """A timer that is too early only looks again, as LookupStream's."""
        wakeup = self._coalescer.next_expiry() if self._blocked else self._coalescer.next_wakeup()
        if self._owed:
            wakeup = min(wakeup, self._silent_at())
        if wakeup >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wakeup
        self._timer = self._loop.call_at(wakeup, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._loop.time()
        self._coalescer.expire(now)
        if self._owed and now >= self._silent_at():
            if self._silent_since == self._heard_at:
                self.end(ServerLost(f"the lookup port of {self._target} keeps silent", address=self._target))
            else:
                self._silent_since, self._unread_until = self._heard_at, now + _UNREAD_SECONDS
        self._send()
        self._end_if_left()

    def _silent_at(self) -> float:
        """When a port that says nothing more counts as silent."""
        least, most = self._silence
        heard, earliest = self._heard_at, self._heard_at + most
        for frame in self._coalescer.in_flight:
            half = (frame.first_deadline - frame.sent_at) / 2
            at = max(heard, frame.sent_at) + max(half, least)
            if at < earliest:
                earliest = at
        return max(earliest, self._unread_until)

    def _end_if_left(self) -> None:
        if self._leaving and not self._coalescer.keys:
            self.end(ServerLost(f"the lookup port of {self._target} is no longer used", address=self._target))
