"""A port for lookups alone, beside gRPC's: the messages of Query.Lookup, in the frames of port_frames.py.

Whoever connects is asked who it is as on gRPC's port, by its certificate or by the token of its first message, and may
read what it may read there. All that it asks for is answered by the same code.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack
from contextvars import copy_context
from typing import cast

from google.protobuf.message import DecodeError

from keyhole.addresses import joined, parted
from keyhole.clock import Clock
from keyhole.errors import (
    DeadlineExceeded,
    Draining,
    InternalError,
    KeyholeError,
    MalformedRequest,
    Overloaded,
    ServerLost,
    Unauthenticated,
    Unsupported,
)
from keyhole.rpc.accepting import Accepting
from keyhole.rpc.authorization import LOOK_SECONDS, seen
from keyhole.rpc.port_calls import AnswerFrame, HandOver, Peer, PortLimits
from keyhole.rpc.port_frames import OPENING_BYTES, REQUEST_BYTES, VERSION, Incoming, packed_message
from keyhole.rpc.read_admission import ReadAdmission, ReadCall
from keyhole.rpc.read_requests import key_count
from keyhole.rpc.status import to_proto
from keyhole.rpc.unsent import Unsent
from keyhole.security.authentication import ANYBODY, NOT_KNOWN, Caller, become
from keyhole.security.guard import PortGuard
from keyhole.v1 import query_pb2

_log = logging.getLogger(__name__)

_WHAT = "the lookup port"
# As the audit log and the policy know what is done here.
_METHOD = "/keyhole.v1.Query/Lookup"
# Keys that are answered before others have their turn: what came may have a thousand frames in it, or a large one. A
# frame costs as much as some keys.
_KEYS_A_TURN, _KEYS_OF_A_FRAME = 512, 32

# Frames of one connection whose answers come later; nothing more of it is read meanwhile.
_MOST_OWED = 16
_USUAL = PortLimits()


class LookupPort:
    """Serves lookups on one port. Make and use it inside the running event loop.

    Args:
        address: host:port to listen on; port 0: any free one.
        admission: What callers may take by lookups: a connection is a call.
        guard: TLS, and who may call; None: plaintext, and everybody.
        incarnation: Of the process; whoever means another one is turned away. Empty: everybody means this one.
        hand_over: Is asked of each connection; None: all are served here.

    Raises:
        InvalidConfiguration: The address is not host:port, or plaintext was not chosen for it.
    """

    def __init__(
        self,
        address: str,
        answer: AnswerFrame,
        admission: ReadAdmission,
        clock: Clock,
        guard: PortGuard | None,
        limits: PortLimits = _USUAL,
        incarnation: str = "",
        hand_over: HandOver | None = None,
    ) -> None:
        self._host, self.port = parted(address, f"the address of {_WHAT}")
        if guard is not None:
            guard.check_host(_WHAT, self._host)
        self.answer = answer
        self.admission = admission
        self.clock = clock
        self.guard = guard
        self.limits = limits
        self.incarnation = incarnation
        self.connections: set[_PortConnection] = set()
        self.held_bytes = 0
        self.unsent = Unsent[_PortConnection](
            limits.all_unsent_bytes, _PortConnection.unread, _PortConnection.cut_unread
        )
        # Why connections are ended, once they are, also those whose handshake ends later; and whether it was stopped.
        self.drained: Draining | None = None
        self.stopped = False
        self._hand_over = hand_over
        self._server: Accepting | None = None
        # Those that are connected and have no protocol yet: a handshake of TLS takes as long as its caller likes.
        self.beginning: set[_PortConnection] = set()
        self._tls = guard.http_context() if guard is not None else None
        self._taking: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Binds and serves; `port` is known then. Raises PortTaken."""
        self._server = accepting = Accepting(_WHAT, self._host, self.port, self._came)
        self.port = accepting.port
        self.begin()
        _log.info("serves lookups without gRPC", extra={"address": joined(self._host, self.port)})

    @property
    def _handshake_seconds(self) -> float | None:
        # None where there is no TLS, or it would be refused.
        return self.limits.opening_seconds if self._tls is not None else None

    def begin(self) -> None:
        """Serves what `take` is given, and nothing else."""
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def _came(self, connection: socket.socket) -> None:
        if self._hand_over is not None and self._hand_over(connection):
            connection.close()  # the other process has it
        else:
            self.take(connection)

    def take(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted, as if it were by this port; closes it where there are too many."""
        if self.stopped or self.open_connections >= self.limits.connections:
            connection.close()
            return
        made = _PortConnection(self)
        self.beginning.add(made)
        taking = asyncio.get_running_loop().create_task(self._take(connection, made))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)

    async def _take(self, connection: socket.socket, made: _PortConnection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: made, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds
            )
        except OSError as error:  # whoever connected has gone, or can't speak TLS
            _log.debug("a connection has not begun", extra={"reason": str(error)})
            connection.close()
        except Exception:  # noqa: BLE001 - the top of a task: whoever has connected would wait
            _log.exception("a connection could not be begun")
            connection.close()
        finally:
            self.beginning.discard(made)

    @property
    def open_connections(self) -> int:
        """How many there are, those whose handshake has yet to end included."""
        return len(self.connections) + len(self.beginning)

    def drain(self) -> None:
        """Takes no more connections, and tells those that stand, or that wait to be taken, to ask by gRPC; answers on
        their way still go out. Idempotent.
        """
        self.drained = Draining("the lookup port is closed, as its server is shutting down")
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.end(self.drained)

    async def stop(self) -> None:
        """Gives the port back, and cuts off who has not taken its last answers. Idempotent."""
        self.drain()
        self.stopped = True
        if self._looking is not None:
            self._looking.cancel()
        for connection in list(self.connections):
            connection.cut()

    async def _look(self) -> None:
        while True:
            await self.clock.pause(LOOK_SECONDS)
            for connection in list(self.connections):
                try:
                    connection.look(self.clock.monotonic())
                except Exception:  # noqa: BLE001 - the top of a loop, without which connections would never end
                    _log.exception("whether a connection may go on could not be found out")


class _PortConnection(asyncio.Protocol):
    """One caller. Answers in the order of its frames, but for those that another process answers."""

    def __init__(self, port: LookupPort) -> None:
        self._port = port
        self._incoming = Incoming(OPENING_BYTES)
        self._counted = 0  # of the port's held_bytes
        self._caller: Caller | None = None  # None: it has not said who it is
        self._call: ReadCall | None = None
        self._ending = ExitStack()
        self._reading, self._stalled, self._over = True, False, False
        self._owed = 0  # frames whose answers are on their way here
        self._turn: asyncio.Handle | None = None
        self._unread = 0  # of what was sent, when that was looked at last
        # Of the last message, of the beginning of the present one, or of having been stalled or ended.
        self._since = port.clock.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transport is a subclass of asyncio's; it does the same.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._port.limits.unsent_bytes)
        self._port.beginning.discard(self)
        self._port.connections.add(self)
        if self._port.stopped:
            self.cut()
        elif self._port.drained is not None:
            # Its handshake began before.
            self.end(self._port.drained)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._port.connections.discard(self)
        self._port.unsent.note(self, 0)
        self._ending.close()
        self._forget()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if not self._incoming.held:
            self._since = self._port.clock.monotonic()
        self._incoming.add(data)
        if self._turn is None:
            self._answer_some()

    def pause_writing(self) -> None:
        self._stalled, self._since = True, self._port.clock.monotonic()
        self._read(on=False)

    def resume_writing(self) -> None:
        # It has read: what was not answered meanwhile has its time from now on.
        self._stalled, self._since = False, self._port.clock.monotonic()
        if self._turn is None and not self._over:
            self._turn = asyncio.get_running_loop().call_soon(self._answer_some)

    def look(self, now: float) -> None:
        """Ends it where it takes too long, or where its caller is no longer known."""
        limits, waited = self._port.limits, now - self._since
        if self._stalled or self._over:
            if waited >= limits.stalled_seconds:
                _log.warning("a connection is ended, because its caller does not read", extra={"seconds": waited})
                self.cut()
        elif (
            # What is held while answers are owed is whole: they are late, not the caller.
            (self._caller is None or (self._incoming.held and not self._owed)) and waited >= limits.opening_seconds
        ):
            self.end(DeadlineExceeded(f"no whole message came within {limits.opening_seconds:g} seconds"))
        elif waited >= limits.idle_seconds:
            self.end(DeadlineExceeded(f"nothing came for {limits.idle_seconds:g} seconds; connect again"))
        elif self._caller is not None and not self._caller.still_known():
            self.end(Unauthenticated(NOT_KNOWN, expired=True))

    def end(self, error: KeyholeError) -> None:
        """Says why, and closes. Answers on their way still go out."""
        if self._over:
            return
        failure = query_pb2.LookupFailure(error=to_proto(error))
        self._send(query_pb2.LookupResponse(failures=[failure]))
        self._over, self._since = True, self._port.clock.monotonic()
        self._forget()
        self._transport.close()

    def cut(self) -> None:
        """Closes it without a word, and at once."""
        self._over = True
        self._port.unsent.note(self, 0)
        self._transport.abort()

    def unread(self) -> int:
        """How many bytes of answers wait here for the caller to take them."""
        return self._transport.get_write_buffer_size()

    def cut_unread(self) -> None:
        """Cuts it off, as all callers together have too much unread."""
        _log.warning(
            "a connection is cut off, because its caller, as others, does not read", extra={"bytes": self._unread}
        )
        self.cut()

    def _answer_some(self) -> None:
        self._turn = None
        try:
            budget = _KEYS_A_TURN
            while budget > 0:
                if self._stalled or self._over:
                    return
                if self._owed >= _MOST_OWED:
                    self._read(on=False)
                    return
                message = self._incoming.next()
                if message is None:
                    self._count()
                    self._read(on=True)
                    return
                budget -= self._take(message)
        except DecodeError:
            self.end(MalformedRequest("what came is no message of a lookup port; check the client's protos"))
        except KeyholeError as error:
            self.end(error)
        except Exception:  # noqa: BLE001 - the top of every frame
            _log.exception("a frame failed unexpectedly", extra={"method": _METHOD})
            self.end(InternalError("a frame failed unexpectedly; the server's log has the cause"))
        else:
            self._read(on=False)
            self._turn = asyncio.get_running_loop().call_soon(self._answer_some)

    def _take(self, message: bytes) -> int:
        """Answers it. Returns what that costs, in keys."""
        self._since = self._port.clock.monotonic()
        if self._caller is None or self._call is None:
            self._open(query_pb2.LookupOpening.FromString(message))
            return _KEYS_OF_A_FRAME
        request = query_pb2.LookupRequest.FromString(message)
        if not request.frame:
            raise MalformedRequest("a frame has no number; count them from 1 on")
        response = self._port.answer(request, self._caller, self._call)
        if isinstance(response, asyncio.Future):
            self._owed += 1
            response.add_done_callback(self._came_later)
        else:
            self._send(response if self._caller.is_anybody else seen(response))
        return _KEYS_OF_A_FRAME + key_count(request)

    def _came_later(self, answered: asyncio.Future[query_pb2.LookupResponse]) -> None:
        self._owed -= 1
        if self._over:
            return
        if answered.cancelled() or answered.exception() is not None:
            # Who has asked asks again, by gRPC.
            self.end(InternalError("another process of the server has not answered a frame; the server's log has why"))
            return
        response, caller = answered.result(), self._caller
        self._send(response if caller is None or caller.is_anybody else seen(response))
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._answer_some)

    def _open(self, opening: query_pb2.LookupOpening) -> None:
        if opening.version != VERSION:
            raise Unsupported(f"this lookup port speaks version {VERSION}, and not {opening.version}: use gRPC")
        guard, transport, own = self._port.guard, self._transport, self._port.incarnation
        if own and opening.incarnation not in ("", own):
            raise ServerLost("another server has the number of this lookup port by now: use gRPC")
        peer = Peer(transport.get_extra_info("peername"))
        caller = ANYBODY
        if guard is not None and guard.access is not None:
            caller = guard.http_caller(opening.authorization, transport.get_extra_info("ssl_object"), peer.peer())
            caller.method = _METHOD
        # In a context of its own: others' frames are answered in this one.
        self._call = copy_context().run(self._begin, caller, peer)
        self._caller = caller
        self._incoming.most = REQUEST_BYTES
        self._send(query_pb2.LookupResponse())

    def _begin(self, caller: Caller, peer: Peer) -> ReadCall:
        become(caller)
        return self._ending.enter_context(self._port.admission.call(peer))

    def _send(self, response: query_pb2.LookupResponse) -> None:
        if self._unread:
            self._note_unread()  # whether it has taken some of it
        self._transport.write(packed_message(response))
        self._note_unread()

    def _note_unread(self) -> None:
        unread = 0 if self._over else self.unread()
        if unread or self._unread:
            self._unread = unread
            self._port.unsent.note(self, unread)

    def _read(self, *, on: bool) -> None:
        if on is not self._reading and not self._over:
            self._reading = on
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def _count(self) -> None:
        """Keeps the port's held_bytes right. Raises Overloaded: too much of all callers is not whole."""
        held = self._incoming.held
        self._port.held_bytes += held - self._counted
        self._counted = held
        if held and self._port.held_bytes > self._port.limits.held_bytes:
            raise Overloaded("the messages that have begun here take too much together; send them again later")

    def _forget(self) -> None:
        self._incoming = Incoming(0)
        self._port.held_bytes -= self._counted
        self._counted = 0
