"""A state server in memory that speaks the real protos: for tests of clients and proxies, without Kafka and stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc

from keyhole.clock import SystemClock
from keyhole.config import SecuritySettings
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.errors import (
    KeyholeError,
    NotOwner,
    StaleDescriptor,
    UnknownApplication,
    UnknownState,
)
from keyhole.metrics.families import version
from keyhole.model.read import Role
from keyhole.model.state import StateDescriptor
from keyhole.rpc import convert, status
from keyhole.rpc.frames import check_answer, cut_to_frame, failures_to_proto
from keyhole.rpc.read_requests import check_consistency, key_count, lookup_of_frame, lookup_of_keys
from keyhole.rpc.scan_requests import scan_range
from keyhole.rpc.server import RpcServer
from keyhole.rpc.server_views import no_routes
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.testing.fake_copies import (
    MAX_KEY_BYTES,
    HostedState,
    StateCopies,
    aggregates_of,
    entries_of,
    staged_epoch_of,
)
from keyhole.testing.fake_watches import FakeWatch
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2, state_server_pb2, state_server_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

PAGE_ENTRIES = 3
"""Of a scan's page: few, so that any answer has several."""


class FakeServer:
    """A state server that answers reads from dictionaries. Make and use it inside one event loop.

    Attributes:
        states: By application and state: what it owns.
        standbys: What it follows.
        refuse: Set it, and every read is refused with it.
        hold: While cleared, frames of Lookup wait, and so do scans.
        held: Lookup streams of which a frame waits.
        hold_after: Scans wait only from this entry on; 0: before they answer anything.
        scans, watches: Scans and watches under way.
        streams: Lookup streams that are open.
        left: Lookup streams that their callers have ended; those that were cancelled don't count.
        frames: Frames answered so far.
        selects: Set it to False, and its scans and watches don't say that they heed a selection, as an older server's.
        change: Is set by the next `changed`, and another one then takes its place.
        version, clock_ahead_ms: What it says of itself in its status.
    """

    def __init__(self, server: str = "fake-1", port: int = 0, security: SecuritySettings | None = None) -> None:
        self.server = server
        self.states: dict[tuple[str, str], HostedState] = {}
        self.standbys: dict[tuple[str, str], HostedState] = {}
        self.refuse: KeyholeError | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.held = 0
        self.hold_after = 0
        self.scans = self.watches = 0
        self.streams = 0
        self.left = 0
        self.frames = 0
        self.draining = False
        self.protocol_version = PROTOCOL_VERSION
        self.selects = True
        self.version = version()
        self.clock_ahead_ms = 0
        self.change = asyncio.Event()
        self._rpc = RpcServer("fake-server", "127.0.0.1", port, security)

    @property
    def address(self) -> str:
        """Where clients find the server, as host:port; known after `start`."""
        return self._rpc.address

    @property
    def port(self) -> int:
        """The port on the loopback interface; known after `start`."""
        return self._rpc.port

    async def start(self) -> None:
        """Listens, and answers health checks with SERVING from then on."""
        self._rpc.add(query_pb2_grpc.add_QueryServicer_to_server, FakeQuery(self), "keyhole.v1.Query")
        ownership = _FakeStateServer(self)  # type: ignore[abstract] # the write path is not faked
        self._rpc.add(state_server_pb2_grpc.add_StateServerServicer_to_server, ownership, "keyhole.v1.StateServer")
        await self._rpc.start()
        await self._rpc.set_serving(True)

    async def stop(self) -> None:
        """Cuts everything at once, as a kill would."""
        self.draining = True
        await self._rpc.stop(0)

    def host(
        self, descriptor: StateDescriptor, rows: Mapping[Any, bytes] | None = None, key_groups: Iterable[int] = ()
    ) -> HostedState:
        """Adds a state; all key groups, unless some are named."""
        state = HostedState(descriptor, key_groups=frozenset(key_groups))
        for key, row in (rows or {}).items():
            state.put(key, row)
        self.states[descriptor.application, descriptor.state] = state
        self.changed()
        return state

    def follow(
        self, descriptor: StateDescriptor, rows: Mapping[Any, bytes] | None = None, key_groups: Iterable[int] = ()
    ) -> HostedState:
        """Adds a standby copy of a state; its arguments are those of `host`."""
        state = HostedState(descriptor, key_groups=frozenset(key_groups), role=Role.STANDBY)
        for key, row in (rows or {}).items():
            state.put(key, row)
        self.standbys[descriptor.application, descriptor.state] = state
        self.changed()
        return state

    def copies(self, name: tuple[str, str]) -> list[HostedState]:
        """The copies of one state, what it owns before what it follows."""
        return [copies[name] for copies in (self.states, self.standbys) if name in copies]

    def all_copies(self) -> list[HostedState]:
        """Owned and standby copies of all states."""
        return [*self.states.values(), *self.standbys.values()]

    def changed(self) -> None:
        """Sends to all ownership streams what the copies hold now, and to watches what has changed."""
        self.change.set()
        self.change = asyncio.Event()

    def holding(self, state: HostedState) -> pb.StateHolding:
        """A copy as DescribeState and ownership streams have it."""
        return pb.StateHolding(
            descriptor=convert.descriptor_to_proto(state.descriptor),
            server=self.server,
            key_groups=sorted(state.key_groups),
            source=state.source(self.server),
            entries=len(state.rows),
            ready=state.ready,
        )

    def status(self) -> pb.ServerStatus:
        """The server as Status has it."""
        holdings = [self.holding(state) for state in self.all_copies()]
        return pb.ServerStatus(
            server=self.server,
            address=self.address,
            holdings=holdings,
            protocol_version=self.protocol_version,
            now_ms=SystemClock().now_ms() + self.clock_ahead_ms,
            version=self.version,
        )

    async def ownership(self) -> AsyncIterator[state_server_pb2.Ownership]:
        """What the server holds, now and after every change."""
        while True:
            change = self.change
            yield state_server_pb2.Ownership(
                server=self.server,
                address=self.address,
                draining=self.draining,
                holdings=[self.holding(state) for state in self.all_copies()],
                max_key_bytes=MAX_KEY_BYTES,
                protocol_version=self.protocol_version,
            )
            await change.wait()


class _FakeStateServer(state_server_pb2_grpc.StateServerServicer):
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    async def Describe(self, request: Any, context: _Context) -> state_server_pb2.DescribeResponse:  # noqa: N802
        return state_server_pb2.DescribeResponse(status=self._server.status())

    async def WatchOwnership(  # noqa: N802
        self, request: Any, context: _Context
    ) -> AsyncIterator[state_server_pb2.Ownership]:
        async for message in self._server.ownership():
            yield message


class FakeQuery(query_pb2_grpc.QueryServicer):
    """The service Query over dicts."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    async def ListStates(self, request: pb.ListStatesRequest, context: _Context) -> pb.ListStatesResponse:  # noqa: N802
        return pb.ListStatesResponse(
            states=[
                convert.descriptor_to_proto(state.descriptor)
                for (application, _), state in sorted((self._server.standbys | self._server.states).items())
                if request.application in ("", application)
            ]
        )

    async def DescribeState(self, request: pb.DescribeStateRequest, context: _Context) -> pb.DescribeStateResponse:  # noqa: N802
        copies = self._copies(request.state)
        return pb.DescribeStateResponse(
            descriptor=convert.descriptor_to_proto(copies.descriptor),
            holdings=[self._server.holding(state) for state in copies.all],
        )

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802
        return pb.GetResponse(answer=self._get(request.state, [request.key], request.options)[0])

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802
        return pb.GetManyResponse(answers=self._get(request.state, list(request.keys), request.options))

    async def Watch(self, request: pb.WatchRequest, context: _Context) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        server, name = self._server, (request.state.application, request.state.state)
        self._copies(request.state)
        state = server.states.get(name)
        if state is None:
            raise NotOwner(f"server {server.server} owns nothing of state {'/'.join(name)}")

        def ended() -> KeyholeError | None:
            if server.refuse is not None:
                return server.refuse
            hosted = server.states.get(name)
            if hosted is state:
                return None
            if hosted is None:
                return UnknownState(f"there is no state {'/'.join(name)} any more")
            return StaleDescriptor(f"state {'/'.join(name)} was made anew; begin the watch without a token")

        watch = FakeWatch(state, request, lambda: server.change, ended, selects=server.selects)
        server.watches += 1
        try:
            async for response in watch.responses():
                yield response
        finally:
            server.watches -= 1

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802
        return pb.StatusResponse(servers=[self._server.status()])

    async def Explain(self, request: pb.ExplainRequest, context: _Context) -> pb.ExplainResponse:  # noqa: N802
        """As a server of an earlier version. A proxy asks no server to."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    async def WatchRoutes(self, request: pb.WatchRoutesRequest, context: _Context) -> AsyncIterator[pb.Routes]:  # noqa: N802
        """Refused, as a state server refuses it."""
        raise no_routes()
        yield  # a generator, as the method is a stream

    async def Lookup(  # noqa: N802
        self, requests: AsyncIterator[pb.LookupRequest], context: _Context
    ) -> AsyncIterator[pb.LookupResponse]:
        self._server.streams += 1
        try:
            async for request in requests:
                if not self._server.hold.is_set():
                    await self._held()
                answer = self._frame(request)
                self._server.frames += 1  # before it is sent: who has read the answer finds it counted
                yield answer
            self._server.left += 1
        finally:
            self._server.streams -= 1

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802
        copies = self._copies(request.state)
        check_consistency(request.options)
        within = scan_range(copies.codec, request)
        if len(within.prefix) > GROUP_BYTES:  # else it is the key group itself
            copies.check([within.prefix])
        (state,) = copies.chosen([within.prefix], request.options)
        entries, aggregates = entries_of(state, within, request), aggregates_of(state, within, request)
        staged = staged_epoch_of(state, within.prefix, request.options)
        source = state.source(self._server.server, request.options.as_of_epoch, staged)
        self._server.scans += 1
        try:
            for at in range(0, len(entries) or 1, PAGE_ENTRIES):
                if at >= self._server.hold_after:
                    await self._server.hold.wait()
                page = entries[at : at + PAGE_ENTRIES]
                yield pb.ScanResponse(
                    source=source,
                    map_keys=[key for key, _ in page],
                    values=[value for _, value in page],
                    selected=self._server.selects and request.HasField("selection"),
                    aggregates=aggregates if self._server.selects else (),
                )
        finally:
            self._server.scans -= 1

    async def _held(self) -> None:
        self._server.held += 1
        try:
            await self._server.hold.wait()
        finally:
            self._server.held -= 1

    def _frame(self, request: pb.LookupRequest) -> pb.LookupResponse:
        try:
            lookup_of_frame(request)
            copies = self._copies(request.state)
            if request.storage_keys and request.topic_id != copies.descriptor.topic_id:
                raise StaleDescriptor("these storage keys are of another state; describe it again")
            keys = list(request.storage_keys) or copies.encoded(list(request.keys))
            values, chosen, failures = copies.lookup_apart(keys, request.options)
            name = f"{request.state.application}/{request.state.state}"
            failures += failures_to_proto(cut_to_frame(name, values))
        except KeyholeError as error:
            count = key_count(request)
            failure = pb.LookupFailure(error=status.to_proto(error))
            return pb.LookupResponse(frame=request.frame, values=[b""] * count, failures=[failure])
        sources, source_of = self._sources(keys, chosen, request.options)
        return pb.LookupResponse(
            frame=request.frame,
            values=values,
            sources=sources,
            source_of=source_of if len(sources) > 1 else (),
            failures=failures,
            server_micros=int(request.timed),
        )

    def _get(self, ref: pb.StateRef, keys: list[pb.Key], options: pb.ReadOptions) -> list[pb.Answer]:
        # Only for what it refuses.
        lookup_of_keys(pb.GetManyRequest(state=ref, keys=keys, options=options))
        copies = self._copies(ref)
        encoded = copies.encoded(keys)
        values, chosen = copies.lookup(encoded, options)
        check_answer(f"{ref.application}/{ref.state}", values, len(keys))
        sources, source_of = self._sources(encoded, chosen, options)
        return [
            pb.Answer(found=bool(value), value=value, source=sources[of])
            for value, of in zip(values, source_of, strict=True)
        ]

    def _sources(
        self, keys: Sequence[bytes], chosen: Sequence[HostedState], options: pb.ReadOptions
    ) -> tuple[list[state_pb2.Source], list[int]]:
        """The sources of the copies that were chosen, and which of them each key has."""
        told = [(state, staged_epoch_of(state, key, options)) for key, state in zip(keys, chosen, strict=True)]
        distinct = list(dict.fromkeys(told))
        sources = [state.source(self._server.server, options.as_of_epoch, staged) for state, staged in distinct]
        return sources, [distinct.index(of) for of in told]

    def _copies(self, ref: pb.StateRef) -> StateCopies:
        copies = self._server.copies((ref.application, ref.state))
        if not copies:
            known = sorted(self._server.states.keys() | self._server.standbys.keys())
            names = ", ".join(f"{application}/{name}" for application, name in known)
            kind = (
                UnknownState if any(ref.application == application for application, _ in known) else UnknownApplication
            )
            raise kind(f"no state {ref.application}/{ref.state}; there are: {names}", states=names)
        return StateCopies(self._server.server, copies, self._server.refuse)
