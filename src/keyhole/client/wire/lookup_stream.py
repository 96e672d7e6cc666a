"""The edge of coalescing.py: one Lookup stream on one connection, opened when needed and again after it broke."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from keyhole.client.wire.coalescing import Coalescer, Lane, Moved
from keyhole.client.wire.lookup_messages import FrameMessages
from keyhole.client.wire.segments import Segment, not_handed_out
from keyhole.errors import KeyholeError, ServerLost
from keyhole.rpc import status
from keyhole.v1 import query_pb2

# For the other side to end a stream; one that lives takes as long as a lookup does.
_LEAVE_SECONDS = 0.5

_METHOD = "/keyhole.v1.Query/Lookup"

_Call: TypeAlias = Any  # grpc.aio.StreamStreamCall; its stub types `read` as object


class _Opened:
    """One stream of the connection: the one that frames are sent by, or one that shows something older and ends."""

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.ending = False


class LookupStream:
    """Sends segments and hands their answers out. Used from the event loop's thread only.

    A stream that breaks fails what was in flight; one that breaks before it answered anything fails what waits too. The
    next segment opens a new one: how often a connection is tried is the channel's business. Where a newer token or
    certificate is to be shown, a new one is opened at once, and the old one is read to its end beside it.

    Args:
        channel: Stays the caller's to close, after `close`.
        target: Its address, for messages.
        heard: Called at every response, before it is handed out: the other side lives.
        broken: Called where a stream ends that was to go on, with why, before the lookups under way fail.
        refused: Called before that where the other side has ended it with an error of its own: it lives.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target: str,
        coalescer: Coalescer | None = None,
        heard: Callable[[], None] = lambda: None,
        broken: Callable[[KeyholeError], None] = lambda _: None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        # Not the generated stub: requests are bytes already.
        self._lookup: Any = channel.stream_stream(
            _METHOD, request_serializer=None, response_deserializer=query_pb2.LookupResponse.FromString
        )
        self._target = target
        self._heard = heard
        self._broken = broken
        self._refused = refused
        self._coalescer = coalescer or Coalescer(target)
        self._messages = FrameMessages(self._coalescer)
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closed: KeyholeError | None = None
        self._timer: asyncio.TimerHandle | None = None
        renewing = getattr(channel, "renewing", None)
        self._newest: Callable[[], object] = renewing.version if renewing is not None else lambda: None
        self._shown: object = None
        self._writing = False
        # Those that end, beside the one that frames are sent by.
        self._older: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._timer_at = math.inf

    @property
    def keys(self) -> int:
        """How many keys wait or are in flight."""
        return self._coalescer.keys

    def submit(self, lane: Lane, segment: Segment) -> None:
        """Sends a segment with the next frame. Its sink is called from the event loop, never from here.

        Args:
            segment: Its deadline is on the clock of the event loop.

        Raises:
            Overloaded: Too much waits already.
            KeyholeError: What `close` was given.
        """
        if self._closed is not None:
            raise self._closed
        self._coalescer.add(lane, segment)
        self._go_on()

    def take_over(self, moved: Moved) -> None:
        """Sends what another connection has left without an answer. After `close` that fails with the same error."""
        for lane, parts in moved:
            self._coalescer.add_parts(lane, parts)
        if self._closed is not None:
            self._coalescer.lost(self._closed, waiting_too=True)
        elif moved:
            self._go_on()

    def _go_on(self) -> None:
        self._ready.set()
        if self._runner is None or self._runner.done():
            self._runner = self._loop.create_task(self._run())

    async def close(self, error: KeyholeError) -> None:
        """Ends the stream; whatever has no answer yet fails with `error`. Idempotent."""
        if self._closed is not None:
            return
        self._closed = error
        if self._timer is not None:
            self._timer.cancel()
        if self._runner is not None:
            if not self._coalescer.keys:
                await self._leave(self._runner)
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
        if self._older:
            for reader in list(self._older):
                reader.cancel()
            await asyncio.wait(list(self._older))
        self._coalescer.lost(error, waiting_too=True)
        # They know whose stream this is: in a circle it would keep gRPC's thread until it is collected.
        self._heard, self._broken, self._refused = lambda: None, lambda _: None, lambda: None

    async def _leave(self, runner: asyncio.Task[None]) -> None:
        """Nobody waits for an answer: the other side ends the stream.

        Of a call that is cancelled gRPC notifies the event loop later, by when that may be closed.
        """
        self._leaving = True
        self._ready.set()
        await asyncio.wait([runner], timeout=_LEAVE_SECONDS)

    async def _run(self) -> None:
        while not self._leaving:
            await self._ready.wait()
            # Nothing may be left of an expired segment by now; what an older stream has under way needs no other one.
            if not self._coalescer.waits:
                self._ready.clear()
                continue
            self._shown = self._newest()
            opened = _Opened(self._lookup())
            reader = self._loop.create_task(self._read(opened))
            reader.add_done_callback(self._over)
            reader.add_done_callback(lambda _, call=opened.call: call.cancel())  # type: ignore[misc]
            try:
                await self._write(opened, reader)
                if opened.ending and not (self._leaving or reader.done()):
                    # What it has under way may wait for long, and nothing else is to wait for that.
                    self._older.add(reader)
                else:
                    await reader
            finally:
                if reader not in self._older and not reader.done():
                    reader.cancel()
                    await asyncio.wait([reader])

    def _over(self, reader: asyncio.Task[None]) -> None:
        self._older.discard(reader)
        self._ready.set()

    async def _write(self, opened: _Opened, reader: asyncio.Task[None]) -> None:
        call = opened.call
        while not reader.done():
            if self._leaving or self._newest() != self._shown:
                # The other side ends streams whose token has expired. What is in flight is still answered.
                opened.ending = True
                await call.done_writing()
                return
            now = self._loop.time()
            # Before the timer, which may be late on a busy loop: what has expired is not sent.
            self._coalescer.expire(now)
            frame = self._coalescer.next_frame(now)
            # Also before a write: it waits for as long as the server takes nothing.
            self._arm_timer()
            if frame is None:
                self._ready.clear()
                await self._ready.wait()
                continue
            frame.by = opened
            self._writing = True
            try:
                await call.write(self._messages.request(frame, now))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # The reader learns why.
            finally:
                self._writing = False

    async def _read(self, opened: _Opened) -> None:
        call, answered = opened.call, False
        lost: KeyholeError
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                answered = True
                self._heard()
                self._messages.deliver(response, self._loop.time())
                self._ready.set()
        except grpc.RpcError as error:
            lost = status.from_rpc_error(error, self._target)
            if status.was_sent(error):
                self._refused()
        except Exception:  # noqa: BLE001 - the top of a loop: whoever waits must hear of it
            lost = not_handed_out(self._target)
        else:
            # An end without an error still has a status.
            code = await call.code()
            lost = ServerLost(f"server {self._target} ended the stream ({code.name})", address=self._target)
        if not opened.ending:
            self._broken(lost)
        self._coalescer.lost(lost, waiting_too=not (answered or opened.ending), by=opened)

    def _arm_timer(self) -> None:
        """A timer that is too early only looks again; re-arming it after every frame would cost more."""
        # No frame goes while another one waits to be taken: they can only expire.
        wakeup = self._coalescer.next_expiry() if self._writing else self._coalescer.next_wakeup()
        if wakeup >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wakeup
        self._timer = self._loop.call_at(wakeup, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._coalescer.expire(self._loop.time())
        self._arm_timer()
        self._ready.set()
