"""The service Query of a proxy: every key goes to its server."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from typing import Any, TypeAlias

import grpc

from keyhole.encoding.codec import StateCodec
from keyhole.errors import DeadlineExceeded, InternalError, KeyholeError, Overloaded
from keyhole.metrics.families import version
from keyhole.protocol.server_view import StateName
from keyhole.rpc import convert
from keyhole.rpc.frames import MAX_VALUE_BYTES
from keyhole.rpc.read_admission import NO_LIMITS, ReadAdmission, ReadCall, is_of_one_caller
from keyhole.rpc.read_requests import MAX_KEYS_PER_REQUEST, check_consistency, key_count, lookup_of_frame, refused_count
from keyhole.rpc.scan_caps import NO_CAPS, CallerScan, CallerScans, ScanCaps, too_many_scans
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.security.authentication import current
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.client_reads import ClientReads
from services.client_proxy.forwarding.explained_reads import ExplainedReads
from services.client_proxy.forwarding.scan import Scanning
from services.client_proxy.forwarding.storage_reads import StorageReads
from services.client_proxy.forwarding.watch import FannedWatch
from services.client_proxy.grpc.lookup_session import LookupSession, Respond, answering, refusal
from services.client_proxy.grpc.route_watches import RouteWatches

_log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# Of the caller's time, what is kept back so that the reason can still reach it, also on a busy machine.
_KEPT_BACK = 0.1
_MOST_KEPT_BACK_SECONDS = 1.0


class ProxyServicer(query_pb2_grpc.QueryServicer):
    """See protos/keyhole/v1/query.proto.

    Args:
        default_timeout_seconds: For requests that bring no deadline.
        max_scans: Beyond so many scans under way, requests are refused as overloaded; `max_watches` for watches.
        caps: What one caller may take by scans.
        admission: What callers may take by lookups; None: all that they want.

    Attributes:
        admission: The same.
    """

    def __init__(
        self,
        directory: Directory,
        default_timeout_seconds: float,
        max_scans: int = 256,
        max_watches: int = 20_000,
        caps: ScanCaps = NO_CAPS,
        admission: ReadAdmission | None = None,
    ) -> None:
        self._directory = directory
        self._default_timeout = default_timeout_seconds
        self._max_scans = max_scans
        self._max_watches = max_watches
        self._scans = 0
        self.counts = ProxyCounts(directory.clock)
        self.admission = admission or ReadAdmission(NO_LIMITS, directory.clock, "this proxy")
        self._caller_scans = CallerScans(caps, directory.clock, self.admission.where)
        self._storage_reads = StorageReads(directory, self.counts, self.admission)
        self._reads = ClientReads(directory, self.counts, self._storage_reads)
        self._explained_reads = ExplainedReads(directory, self._storage_reads)
        self._sessions: set[LookupSession] = set()
        # Also those that wait for the first word of servers.
        self._watching = 0
        self._watches: set[FannedWatch] = set()
        self._route_watches = RouteWatches(directory)
        self._draining = False
        self._loop = asyncio.get_running_loop()

    @property
    def under_way(self) -> tuple[int, int, int]:
        """How many keys, scans and Lookup streams are under way."""
        return self.admission.keys, self._scans, len(self._sessions)

    def drain(self) -> None:
        """Ends what clients keep open for ever: Lookup streams, after the frames that are under way, and watches, also
        those that are still to come.
        """
        self._draining = True
        for session in self._sessions:
            session.drain()
        for watch in self._watches:
            watch.drain()
        self._route_watches.drain()

    async def ListStates(self, request: pb.ListStatesRequest, context: _Context) -> pb.ListStatesResponse:  # noqa: N802
        """Lists the states of all servers."""
        with self.admission.call(context):
            await self._directory.tried(self._deadline(context))
        if not self._directory.tables:
            self._directory.check_reachable()
        return pb.ListStatesResponse(
            states=[
                convert.descriptor_to_proto(table.descriptor)
                for (application, _), table in sorted(self._directory.tables.items())
                if request.application in ("", application)
            ]
        )

    async def DescribeState(self, request: pb.DescribeStateRequest, context: _Context) -> pb.DescribeStateResponse:  # noqa: N802
        """Describes a state, with what each server that can be reached said of it last."""
        name = _name(request.state)
        with self.admission.call(context):
            await self._directory.known(name, self._deadline(context))
        descriptor = self._directory.table(name).descriptor
        holdings = [
            holding
            for link in self._directory.links
            if link.view is not None and not link.view.lost
            for holding in link.holdings
            if (holding.descriptor.application, holding.descriptor.state) == name
        ]
        return pb.DescribeStateResponse(descriptor=convert.descriptor_to_proto(descriptor), holdings=holdings)

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802
        """Looks one key up, wherever it is: a GetMany of that key."""
        many = pb.GetManyRequest(state=request.state, keys=[request.key], options=request.options)
        (answer,) = await self.read_many(many, context)
        return pb.GetResponse(answer=answer)

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802
        """Looks many keys up, of any servers."""
        return pb.GetManyResponse(answers=await self.read_many(request, context))

    async def Lookup(  # noqa: N802
        self, requests: AsyncIterator[pb.LookupRequest], context: _Context
    ) -> AsyncIterator[pb.LookupResponse]:
        """Answers frames. One that can't be answered fails alone; the stream goes on."""
        with self.admission.call(context) as call:
            session = LookupSession(functools.partial(self._handle, call))
            self._sessions.add(session)
            try:
                # Ended before the call is: what it reads would be begun behind that.
                async with aclosing(session.run(requests)) as responses:
                    async for message in responses:
                        yield message
            finally:
                self._sessions.discard(session)

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802
        """Yields the entries of one key, from one copy of it."""
        began = self._directory.clock.monotonic()
        name = _name(request.state)
        try:
            async with (
                self._caller_scans.open(request) as mine,
                aclosing(self._scan(request, context, mine)) as pages,
            ):
                async for page in pages:
                    self.counts.of(name, self._directory.tables).entries += len(page.values)
                    yield page
        except KeyholeError as error:
            self.counts.failed(self.counts.of(name, self._directory.tables), [error])
            raise
        finally:
            self.counts.of(name, self._directory.tables).scans += 1
            self.counts.scan_seconds.observe(self._directory.clock.monotonic() - began)

    async def _scan(
        self, request: pb.ScanRequest, context: _Context, mine: CallerScan
    ) -> AsyncGenerator[pb.ScanResponse]:
        check_consistency(request.options)
        if self._scans >= self._max_scans:
            raise too_many_scans(self._scans, self.admission.where, self._max_scans, "KEYHOLE_CLIENT_PROXY_MAX_SCANS")
        self._scans += 1
        deadline, left = self._deadline(context), mine.left()
        until = deadline if left is None else min(deadline, self._loop.time() + left)
        try:
            await self._directory.known(_name(request.state), deadline)
            async with aclosing(Scanning(self._directory, request, until).pages()) as pages:
                async for page in pages:
                    mine.took(page)
                    yield page
        except DeadlineExceeded as error:
            if until < deadline:
                raise mine.took_too_long() from error
            raise
        finally:
            self._scans -= 1

    async def Watch(self, request: pb.WatchRequest, context: _Context) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Yields rows and changes, of whichever servers have them."""
        name = _name(request.state)
        if self._watching >= self._max_watches:
            raise Overloaded(f"{self._watching:,} watches are under way in {self.admission.where}, and no more may be")
        self._watching += 1
        watch: FannedWatch | None = None
        try:
            await self._directory.known(name, self._deadline(context))
            watch = FannedWatch(self._directory, request, self._default_timeout)
            self._watches.add(watch)
            if self._draining:
                watch.drain()
            async with aclosing(watch.responses()) as responses:
                async for response in responses:
                    yield response
        finally:
            # Its end is no read that failed: watches are none of the keys and scans that these are a part of.
            self._watching -= 1
            if watch is not None:
                self._watches.discard(watch)

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802
        """Asks all servers at the same time; of those that can't be reached it says why."""
        patience = min(2.0, max(0.0, self._deadline(context) - self._loop.time()))
        servers = await asyncio.gather(*(link.describe(patience) for link in self._directory.links))
        now_ms = self._directory.clock.now_ms()
        own = pb.ProxyStatus(version=version(), protocol_version=PROTOCOL_VERSION, now_ms=now_ms)
        return pb.StatusResponse(servers=servers, proxy=own)

    async def Explain(self, request: pb.ExplainRequest, context: _Context) -> pb.ExplainResponse:  # noqa: N802
        """Looks one key up, and says which way it went."""
        addresses = current().may_everywhere(Verb.ADMIN, Verb.PLATFORM)
        return await self._explained_reads.explain(request, self._deadline(context), addresses=addresses)

    async def WatchRoutes(self, request: pb.WatchRoutesRequest, context: _Context) -> AsyncIterator[pb.Routes]:  # noqa: N802
        """Yields which servers have copies of a state."""
        responses = self._route_watches.responses(_name(request.state), self._deadline(context))
        async with aclosing(responses) as routes:
            async for one in routes:
                yield one

    def _handle(self, call: ReadCall, request: pb.LookupRequest, respond: Respond) -> None:
        keys, taken = key_count(request) or 1, False

        def ended(response: pb.LookupResponse, value_bytes: int = 0, /) -> None:
            if taken:
                call.end(keys)
            respond(response, value_bytes)

        def failed(error: Exception) -> None:
            failure = _as_keyhole_error(error)
            self._refused(request.state, failure, refused_count(request))
            ended(refusal(request, failure))

        deadline = self._before_deadline(request.timeout_ms / 1000 if request.timeout_ms else self._default_timeout)
        try:
            current().check(Verb.READ, request.state.application, request.state.state)
            call.begin(keys, request.sent_ms, request.timeout_ms)
            taken = True
            lookup = lookup_of_frame(request)
            self._reads.frame(lookup, deadline, answering(request.frame, ended), failed)
        except Exception as error:  # noqa: BLE001 - the top of every frame: the stream must go on
            failed(error)

    async def read_many(
        self, request: pb.GetManyRequest, context: _Context, most_bytes: int = MAX_VALUE_BYTES
    ) -> list[pb.Answer]:
        """Answers a GetMany in the call's deadline, in the order of its keys. Raises as ClientReads.many, and what
        ReadAdmission raises.
        """
        keys = len(request.keys)
        with ExitStack() as admitted:
            try:
                call = admitted.enter_context(self.admission.call(context))
                admitted.enter_context(call.lookup(keys or 1))
            except KeyholeError as error:
                self._refused(request.state, error, min(keys, MAX_KEYS_PER_REQUEST))
                raise
            return await self._reads.many(request, self._deadline(context), most_bytes)

    async def codec(self, name: StateName, context: _Context) -> StateCodec:
        """Returns a state's codec, once it is known in the caller's time. Raises UnknownApplication, UnknownState."""
        await self._directory.known(name, self._deadline(context))
        return self._directory.codec(name)

    def _refused(self, state: pb.StateRef, error: KeyholeError, keys: int) -> None:
        # Who floods a proxy must not make it look as if reads failed: `admission` counts those.
        if not is_of_one_caller(error):
            self.counts.refused(self.counts.of(_name(state), self._directory.tables), error.reason, keys)

    def _deadline(self, context: _Context) -> float:
        remaining: float | None = context.time_remaining()
        return self._before_deadline(self._default_timeout if remaining is None else remaining)

    def _before_deadline(self, timeout: float) -> float:
        return self._loop.time() + timeout - min(_MOST_KEPT_BACK_SECONDS, _KEPT_BACK * timeout)


def _as_keyhole_error(error: Exception) -> KeyholeError:
    if isinstance(error, KeyholeError):
        return error
    _log.error("a frame failed unexpectedly", exc_info=error)
    return InternalError("the frame failed unexpectedly; the proxy's log has the cause")


def _name(state: pb.StateRef) -> StateName:
    return state.application, state.state
