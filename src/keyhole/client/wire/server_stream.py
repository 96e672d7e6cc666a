"""Lookups of one state server: by its lookup port where that can be used, else by gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from keyhole.addresses import parted
from keyhole.backoff import Backoff
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.client.wire.port_stream import PortStream, Silence
from keyhole.client.wire.segments import Segment
from keyhole.errors import KeyholeError, ServerLost
from keyhole.rpc.rotation import Renewing

_log = logging.getLogger(__name__)

# Between two attempts to connect to a lookup port: nobody waits for it.
_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.1, 30.0
_PATIENCE_SECONDS = 5.0
# How late a newer token or certificate is shown, at most.
_LOOK_SECONDS = 1.0


class ServerStream:
    """Sends segments and hands their answers out, as LookupStream does. Used from the event loop's thread only.

    What a lookup port leaves without an answer, whatever the reason, goes on by gRPC: what is said of a server, and to
    callers, is what gRPC says.

    Args:
        by_grpc: Is closed with this.
        address: Where the server is reached by gRPC; its lookup port is at the same host.
        shown: What the server is shown; None: nothing, and no TLS.
        heard: As LookupStream's.
        silence: As PortStream's.
    """

    def __init__(
        self,
        by_grpc: LookupStream,
        address: str,
        shown: Renewing | None,
        heard: Callable[[], None] = lambda: None,
        silence: Silence = Silence(),  # noqa: B008 - a value
    ) -> None:
        self._grpc = by_grpc
        self._address = address
        self._shown = shown
        self._heard = heard
        self._silence = silence
        self._announced = 0
        self._incarnation = ""
        self._said = ""
        self._streams: set[PortStream] = set()
        self._keeping: asyncio.Task[None] | None = None
        self.port: PortStream | None = None
        """The connection that segments go by; None: they go by gRPC."""

    @property
    def keys(self) -> int:
        """How many keys wait or are in flight."""
        return self._grpc.keys + sum(stream.keys for stream in self._streams)

    def submit(self, lane: Lane, segment: Segment) -> None:
        """Sends a segment by whichever way is open. As LookupStream.submit in all else."""
        port = self.port
        if port is not None and not port.over.done():
            port.submit(lane, segment)
        else:
            self._grpc.submit(lane, segment)

    def announced(self, port: int, incarnation: str = "") -> None:
        """The server says where its lookup port is; 0: it has none. It is connected to in the background.

        Args:
            incarnation: Of the server that says so: another one that has the number by then is not asked.
        """
        if (port, incarnation) == (self._announced, self._incarnation):
            return
        self._announced, self._incarnation = port, incarnation
        if self._keeping is not None:
            self._keeping.cancel()
        self._use(None)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(port)) if port else None

    async def close(self, error: KeyholeError) -> None:
        """Ends the streams; whatever has no answer yet fails with `error`. Idempotent."""
        self.port = None
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await self._grpc.close(error)
        for stream in list(self._streams):
            stream.end(error)
            self._take_from(stream)

    def _use(self, stream: PortStream | None) -> None:
        before, self.port = self.port, stream
        if before is not None:
            before.leave()

    async def _keep(self, port: int) -> None:
        """Has a connection to the port as long as that can be had, with what is to be shown now."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS)
        while True:
            version = self._version()
            try:
                stream = await self._connect(port)
            except (OSError, TimeoutError, KeyholeError) as error:
                self._say("lookups go by gRPC, as the server's lookup port can't be used", str(error))
            except Exception:  # noqa: BLE001 - the top of a loop: gRPC is there all the same
                _log.exception("connecting to a lookup port failed", extra={"address": self._address})
            else:
                self._say("lookups go by the server's lookup port")
                self._use(stream)
                while not stream.over.done() and self._version() == version:
                    await asyncio.wait([stream.over], timeout=None if self._shown is None else _LOOK_SECONDS)
                if not stream.over.done():
                    continue  # it shows something older: a newer one takes its place
                self._say("lookups go by gRPC, as the lookup port's connection is over", stream.over.result().message)
                if stream.answered:
                    backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _connect(self, port: int) -> PortStream:
        host, _ = parted(self._address, "a server's address")
        tls, name = (None, "") if self._shown is None else self._shown.tls()
        authorization = self._shown.authorization() if self._shown else ""
        stream = PortStream(self._address, authorization, self._heard, self._incarnation, self._silence)
        self._streams.add(stream)
        stream.over.add_done_callback(lambda _: self._take_from(stream))
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: stream, host, port, ssl=tls, server_hostname=(name or host) if tls else None
                )
                await stream.opened
        except BaseException:
            stream.opened.cancel()
            stream.end(ServerLost(f"the lookup port of {self._address} could not be connected to"))
            raise
        return stream

    def _take_from(self, stream: PortStream) -> None:
        """It is over: what it leaves goes on by gRPC."""
        self._streams.discard(stream)
        if self.port is stream:
            self.port = None
        self._grpc.take_over(stream.let_go())

    def _version(self) -> object:
        return None if self._shown is None else self._shown.version()

    def _say(self, what: str, reason: str = "") -> None:
        if what != self._said:  # and not at each attempt
            self._said = what
            _log.info(what, extra={"address": self._address} | ({"reason": reason} if reason else {}))
