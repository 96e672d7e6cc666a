"""The reads of one state server: the service Query over its tables."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing
from typing import Any

import grpc

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.metrics.counters import ReadCounts
from keyhole.rpc.convert import bounds_from_proto, descriptor_to_proto
from keyhole.rpc.explanations import micros
from keyhole.rpc.frames import portions
from keyhole.rpc.known_selections import KnownSelections
from keyhole.rpc.read_admission import NO_LIMITS, FrameCall, ReadAdmission
from keyhole.rpc.read_requests import (
    MAX_KEYS_PER_REQUEST,
    check_consistency,
    key_count,
    lookup_of_frame,
    lookup_of_keys,
    refused_count,
)
from keyhole.rpc.requested_aggregates import RequestedAggregates
from keyhole.rpc.scan_caps import NO_CAPS, CallerScan, CallerScans, ScanCaps
from keyhole.rpc.scan_requests import is_descending, scan_range
from keyhole.rpc.server_views import no_routes
from keyhole.security.authentication import Caller, current
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.state_server.read.holdings import holdings
from services.state_server.read.read_turns import ReadTurns
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.registry import Registry
from services.state_server.servicers.explained import explained
from services.state_server.servicers.large_entries import check_entries
from services.state_server.servicers.lookup_responses import frame_response, many_answers, refused_frame
from services.state_server.servicers.scan_aggregates import aggregated
from services.state_server.servicers.watches import Watches

_Context = grpc.aio.ServicerContext[Any, Any]


class QueryServicer(query_pb2_grpc.QueryServicer):
    """See protos/keyhole/v1/query.proto. Answers for this server's key groups only.

    Args:
        changelog: Makes the changelog of an application, from which watches read back.
        scans: What all scans together may take, and one call of them.
        caps: What one caller may take by scans.
        admission: What callers may take by lookups; None: all that they want.

    Attributes:
        admission: The same.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        changelog: Callable[[str], Changelog],
        scans: ScanLimits | None = None,
        caps: ScanCaps = NO_CAPS,
        admission: ReadAdmission | None = None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._scans = Scans(scans or ScanLimits())
        self._turns = ReadTurns()
        self._selections = KnownSelections()
        self._caller_scans = CallerScans(caps, clock, "this server")
        self.admission = admission or ReadAdmission(NO_LIMITS, clock, "this server")
        self.watches = Watches(registry, clock, changelog, turns=self._turns)
        self._counts = registry.counts

    @property
    def open_scans(self) -> int:
        """How many scans are under way."""
        return self._scans.under_way

    async def ListStates(self, request: pb.ListStatesRequest, context: _Context) -> pb.ListStatesResponse:  # noqa: N802 - gRPC
        """All states of which it has key groups."""
        wanted = request.application
        return pb.ListStatesResponse(
            states=[
                descriptor_to_proto(table.descriptor)
                for (application, _), table in sorted(self._registry.tables.items())
                if not wanted or application == wanted
            ]
        )

    async def DescribeState(self, request: pb.DescribeStateRequest, context: _Context) -> pb.DescribeStateResponse:  # noqa: N802 - gRPC
        """One state, and what this server holds of it."""
        table = self._registry.table(request.state.application, request.state.state)
        descriptor = descriptor_to_proto(table.descriptor)
        return pb.DescribeStateResponse(descriptor=descriptor, holdings=holdings(table, descriptor, sizes=True))

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802 - gRPC
        """Looks one key up, among the key groups that this server holds."""
        many = pb.GetManyRequest(state=request.state, keys=[request.key], options=request.options)
        return pb.GetResponse(answer=self._many(many, context)[0])

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802 - gRPC
        """Several keys, all of them this server's, as of one epoch."""
        return pb.GetManyResponse(answers=self._many(request, context))

    async def Lookup(  # noqa: N802 - gRPC
        self, requests: AsyncIterator[pb.LookupRequest], context: _Context
    ) -> AsyncIterator[pb.LookupResponse]:
        """Frames. A frame that can't be answered fails alone; the stream goes on."""
        with self.admission.call(context) as call:
            async for request in requests:
                yield self.frame(request, current(), call)

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802 - gRPC
        """The entries of one key, as of one epoch however long it takes to read them."""
        began = self._clock.monotonic()
        reads = self._reads(request.state)
        try:
            async with (
                self._caller_scans.open(request) as mine,
                aclosing(self._scan(request, mine)) as responses,
            ):
                async for response in responses:
                    reads.entries += len(response.values)
                    reads.entry_bytes += sum(map(len, response.values)) + sum(map(len, response.map_keys))
                    yield response
        except KeyholeError as error:
            reads.failed[error.reason] += 1
            raise
        finally:
            reads.scans += 1
            self._counts.scan_seconds.observe(self._clock.monotonic() - began)

    async def _scan(self, request: pb.ScanRequest, mine: CallerScan) -> AsyncGenerator[pb.ScanResponse]:
        table, options = self._registry.table(request.state.application, request.state.state), request.options
        check_consistency(options)
        within, bounds = scan_range(table.codec, request), bounds_from_proto(options)
        select, selected = self._selections.of(table.descriptor, request), request.HasField("selection")
        asked = RequestedAggregates(table.descriptor, request, select) if request.aggregates else None
        within, known, sent = within.narrowed(select.keys), len(within.prefix), False
        with (
            self._scans.open(
                lambda: table.scan(
                    within, bounds, descending=is_descending(request), indexed=select.indexed, limit=request.limit
                )
            ) as scanned,
            closing(self._scans.pages(scanned, request.limit, select)) as found,
            closing(mine.timed(found)) as pages,
        ):
            await self._turns.next()
            if asked is not None:
                answer = aggregated(pages, asked, scanned.source, self._turns, selected=selected)
                async with aclosing(answer) as responses:
                    async for response in responses:
                        yield response
                return
            for page in pages:
                rows = select.values(page.rows)
                check_entries(table, page.keys, rows)
                for part in portions(map(len, rows)):
                    sent = True
                    map_keys = [key[known:] for key in page.keys[part]]
                    response = pb.ScanResponse(
                        source=scanned.source, map_keys=map_keys, values=rows[part], selected=selected
                    )
                    mine.took(response)
                    yield response
                if not sent:
                    # Nothing was found in a first turn: whoever waits for the first page hears that it is looked for.
                    sent = True
                    yield pb.ScanResponse(source=scanned.source, selected=selected)
                await self._turns.next()

    async def Watch(self, request: pb.WatchRequest, context: _Context) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802 - gRPC
        """Rows, then each committed change of them."""
        # Its end is no read that failed: watches are none of the keys and scans that these are a part of.
        async with aclosing(self.watches.responses(request)) as responses:
            async for response in responses:
                yield response

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802 - gRPC
        """What this server holds, with sizes."""
        return pb.StatusResponse(servers=[self._registry.status(self._clock.now_ms())])

    async def Explain(self, request: pb.ExplainRequest, context: _Context) -> pb.ExplainResponse:  # noqa: N802 - gRPC
        """One key among this server's key groups, and what it holds of it."""
        began = self._clock.monotonic()
        reads = self._reads(request.state)
        try:
            table = self._registry.table(request.state.application, request.state.state)
            status = self._registry.status(self._clock.now_ms())
            if not current().may_everywhere(Verb.ADMIN, Verb.PLATFORM):
                status.address = status.server  # who reads need not know where it is
            response = explained(table, request, status)
        except KeyholeError as error:
            reads.failed[error.reason] += 1
            raise
        finally:
            took = self._clock.monotonic() - began
            self._counts.looked_up(reads, 1, took)
        response.lookup_micros = response.micros = max(1, micros(took))
        return response

    async def WatchRoutes(self, request: pb.WatchRoutesRequest, context: _Context) -> AsyncIterator[pb.Routes]:  # noqa: N802 - gRPC
        """Refused: clients that ask it are there already."""
        raise no_routes()
        yield  # a generator, as the method is a stream

    def _reads(self, state: pb.StateRef) -> ReadCounts:
        table = self._registry.tables.get((state.application, state.state))
        # Names that somebody made up must not become labels.
        return self._counts.elsewhere if table is None else table.reads

    def _many(self, request: pb.GetManyRequest, context: _Context) -> list[pb.Answer]:
        began = self._clock.monotonic()
        keys = len(request.keys)
        count, reads = min(keys, MAX_KEYS_PER_REQUEST), self._reads(request.state)
        try:
            with self.admission.call(context) as call, call.lookup(keys):
                lookup = lookup_of_keys(request)
                return many_answers(self._registry.table(*lookup.state), lookup)
        except KeyholeError as error:
            reads.failed[error.reason] += count
            raise
        finally:
            self._counts.looked_up(reads, count, self._clock.monotonic() - began)

    def frame(self, request: pb.LookupRequest, caller: Caller, call: FrameCall) -> pb.LookupResponse:
        """The answer to one frame of lookups, whichever way it came."""
        began = self._clock.monotonic()
        count, reads = refused_count(request), self._reads(request.state)
        try:
            caller.check(Verb.READ, request.state.application, request.state.state)
            call.begin(key_count(request) or 1, request.sent_ms, request.timeout_ms)
            try:
                lookup = lookup_of_frame(request)
                response = frame_response(self._registry.table(*lookup.state), lookup, request.frame)
            finally:
                call.end(count or 1)
            if request.timed:
                response.server_micros = max(1, micros(self._clock.monotonic() - began))
            return response
        except KeyholeError as error:
            reads.failed[error.reason] += count
            return refused_frame(request, error, count)
        finally:
            self._counts.looked_up(reads, count, self._clock.monotonic() - began)
