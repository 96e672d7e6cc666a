"""One state server, as a proxy sees it: what it says it owns, and the stream that lookups go over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import grpc
import msgspec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keyhole.backoff import Backoff
from keyhole.client.wire.lookup_stream import LookupStream
from keyhole.client.wire.server_stream import ServerStream
from keyhole.clock import Clock
from keyhole.errors import InternalError, KeyholeError, NoServer, ProtocolMismatch, ServerLost, Unauthenticated
from keyhole.protocol.server_view import ServerView
from keyhole.rpc import channels, status
from keyhole.rpc.server_views import view_of
from keyhole.rpc.version import check
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import (
    query_pb2,
    query_pb2_grpc,
    state_pb2,
    state_server_pb2,
    state_server_pb2_grpc,
    stats_pb2,
    stats_pb2_grpc,
)
from services.client_proxy.watch_channels import WatchChannels

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 1.0


class ServerConnection:
    """Follows one server for as long as it is discovered, over any number of connections.

    Args:
        changed: Called whenever `view` has changed.
        hop_seconds: How fast a server that was silent must answer to be trusted again.
    """

    def __init__(
        self,
        address: str,
        changed: Callable[[], None],
        hop_seconds: float,
        clock: Clock,
        credentials: Credentials = PLAIN,
    ) -> None:
        self._clock = clock
        self.address = address
        self.view: ServerView | None = None
        """None: not tried to the end yet."""
        self.holdings: tuple[query_pb2.StateHolding, ...] = ()
        """As the server said them last."""
        self.reached = False
        self._changed = changed
        self._hop_seconds = hop_seconds
        shown = channels.prepared(address, credentials)
        self._channel = channels.prepared_aio_channel(address, shown, alone=False)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        self._stub: Any = state_server_pb2_grpc.StateServerStub(self._channel)
        self._stats: Any = stats_pb2_grpc.StatsStub(self._channel)
        self._query: Any = query_pb2_grpc.QueryStub(self._channel)
        by_grpc = LookupStream(self._channel, address, heard=self._heard)
        self.stream = ServerStream(by_grpc, address, shown, self._heard)
        self._watch_channels = WatchChannels(lambda: channels.aio_link(address, credentials))
        self._suspected = False
        self._gone: NoServer | None = None
        self._probing: asyncio.Task[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def describe(self, timeout_seconds: float) -> query_pb2.ServerStatus:
        """What the server says of itself now; `unreachable` says why it doesn't."""
        known = self.view or ServerView(self.address)
        try:
            with self._calling():
                response: state_server_pb2.DescribeResponse = await self._stub.Describe(
                    state_server_pb2.DescribeRequest(), timeout=timeout_seconds
                )
        except KeyholeError as error:
            reason = known.lost or error.message
            return query_pb2.ServerStatus(server=known.server, address=self.address, unreachable=reason)
        status = response.status
        try:
            check(status.protocol_version, f"state server {status.server} ({self.address})")
        except ProtocolMismatch as error:
            return query_pb2.ServerStatus(server=status.server, address=self.address, unreachable=error.message)
        return status

    async def figures(self, timeout_seconds: float) -> stats_pb2.ReadStatsResponse | None:
        """What it counts of itself; None: it doesn't tell, or not in time."""
        try:
            with self._calling():
                figures: stats_pb2.ReadStatsResponse = await self._stats.Read(
                    stats_pb2.ReadStatsRequest(), timeout=timeout_seconds
                )
        except KeyholeError:
            return None
        return figures

    async def epochs(
        self, application: str, query: str, timeout_seconds: float
    ) -> Sequence[state_pb2.EpochTimes] | None:
        """What it has heard of the last epochs of a query, from the oldest; None: it doesn't say, or not in time."""
        asked = stats_pb2.ReadStatsRequest(epochs_of=stats_pb2.EpochsOf(application=application, query=query))
        try:
            with self._calling():
                response: stats_pb2.ReadStatsResponse = await self._stats.Read(asked, timeout=timeout_seconds)
        except KeyholeError:
            return None
        return response.epochs

    async def scan(
        self, request: query_pb2.ScanRequest, timeout_seconds: float
    ) -> AsyncGenerator[query_pb2.ScanResponse]:
        """The server's pages. Close it.

        Raises:
            ServerLost: It can't be reached, or breaks off.
            NoServer: It is no longer among the discovered ones.
            KeyholeError: What it refuses with.
        """
        with self._calling():
            call = self._query.Scan(request, timeout=timeout_seconds)
            try:
                async for page in call:
                    self._heard()
                    yield page
            finally:
                call.cancel()

    async def watch(self, request: query_pb2.WatchRequest) -> AsyncGenerator[query_pb2.WatchResponse]:
        """The server's part of a watch, for as long as it is read. Close it. Raises as `scan`."""
        with self._calling():
            async with self._watch_channels.stub() as stub:
                call = stub.Watch(request)
                try:
                    async for response in call:
                        self._heard()
                        yield response
                finally:
                    call.cancel()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Around a call: its failure as a KeyholeError, also where the channel is closed meanwhile."""
        if self._gone is not None:
            raise self._gone
        try:
            yield
        except grpc.RpcError as error:
            raise status.from_rpc_error(error, self.address) from error
        except asyncio.CancelledError:
            # Closing the channel cancels its calls; the caller's own cancellation goes through.
            task = asyncio.current_task()
            if self._gone is not None and (task is None or not task.cancelling()):
                raise self._gone from None
            raise

    def suspect(self) -> None:
        """It has been silent for too long. Any answer of its, or a probe that is answered in time, clears it."""
        if self._suspected or self.view is None or self.view.lost:
            return
        _log.warning("server is silent", extra={"address": self.address, "server": self.view.server})
        self._become(msgspec.structs.replace(self.view, suspect=True))
        if self._probing is None or self._probing.done():
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def close(self) -> None:
        """Fails the lookups and scans that are under way."""
        self._gone = NoServer(f"server {self.address} is no longer among the discovered ones")
        for task in (self._task, self._probing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.stream.close(self._gone)
        await self._watch_channels.close()
        await self._channel.close()

    async def _follow(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            begun = self._clock.monotonic()
            lost = await self._watch(backoff)
            if isinstance(lost, Unauthenticated) and self._clock.monotonic() - begun > _PROBE_SECONDS:
                # The token or certificate that the stream began with has expired: the next call shows a newer one.
                continue
            if self.view is None or not self.view.lost:
                _log.warning("server lost", extra={"address": self.address, "reason": lost.message})
            self._become(
                msgspec.structs.replace(self.view or ServerView(self.address), lost=lost.message, suspect=False)
            )
            await self._clock.pause(backoff.next())

    async def _watch(self, backoff: Backoff) -> KeyholeError:
        """Follows one stream to its end, and returns why it ended."""
        try:
            async for ownership in self._stub.WatchOwnership(state_server_pb2.WatchOwnershipRequest()):
                check(ownership.protocol_version, f"state server {ownership.server} ({self.address})")
                backoff.reset()
                view = view_of(self.address, ownership)
                if self.view is None or self.view.lost:
                    _log.info("server found", extra={"address": self.address, "server": view.server})
                self.holdings = tuple(ownership.holdings)
                self.reached = True
                self.stream.announced(view.lookup_port, view.incarnation)
                self._become(view)
        except grpc.RpcError as error:
            return status.from_rpc_error(error, self.address)
        except KeyholeError as error:  # a server of another version, or a descriptor that this one can't read
            return error
        except Exception:  # noqa: BLE001 - the top of a loop: a server that is not followed any more would never be found
            _log.exception("following a server failed unexpectedly", extra={"address": self.address})
            return InternalError(f"following server {self.address} failed unexpectedly; the proxy's log has the cause")
        return ServerLost(f"server {self.address} ended the stream; it is probably shutting down")

    def _heard(self) -> None:
        if self._suspected and self.view is not None:
            _log.info("server answers again", extra={"address": self.address, "server": self.view.server})
            self._become(msgspec.structs.replace(self.view, suspect=False))

    async def _probe(self) -> None:
        """Frames that it owes may have been given up: then nothing of its would ever come."""
        while self._suspected:
            await self._clock.pause(_PROBE_SECONDS)
            with contextlib.suppress(grpc.RpcError):
                await self._health.Check(health_pb2.HealthCheckRequest(), timeout=self._hop_seconds)
                self._heard()

    def _become(self, view: ServerView) -> None:
        self._suspected = view.suspect
        if view != self.view:
            self.view = view
            self._changed()
