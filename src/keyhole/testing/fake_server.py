"""A state server in memory that speaks the real protos: for tests of clients and proxies, without Kafka and stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc

from keyhole.clock import SystemClock
from keyhole.config import SecuritySettings
from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.storage_key import GROUP_BYTES, are_storage_keys, group_of
from keyhole.errors import (
    EpochNotReached,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NotOwner,
    NotReady,
    StaleDescriptor,
    TooStale,
    UnavailableError,
    Unconfirmed,
    UnknownApplication,
    UnknownState,
)
from keyhole.model.read import ReadBounds, Role, Stale
from keyhole.model.state import StateDescriptor
from keyhole.rpc import convert, status
from keyhole.rpc.frames import check_answer, cut_to_frame, failures_to_proto
from keyhole.rpc.read_requests import check_consistency, check_frame, key_count
from keyhole.rpc.scan_requests import scan_range
from keyhole.rpc.server import RpcServer
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2, state_server_pb2, state_server_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

MAX_KEY_BYTES = 511
PAGE_ENTRIES = 3
"""Of a scan's page: few, so that any answer has several."""


@dataclass(eq=False)
class HostedState:
    """One copy of a state on the fake. Change it at will; call `FakeServer.changed` after what ownership streams tell.

    Attributes:
        confirmed: Owner: whether its coordinator was heard of within the lease.
        as_of_ms: Milliseconds since 1970, UTC; None: now, as a confirmed owner's is; 0: not known.
    """

    descriptor: StateDescriptor
    rows: dict[bytes, bytes] = field(default_factory=dict)
    key_groups: frozenset[int] = frozenset()
    ready: bool = True
    epoch: int = 1
    generation: int = 1
    assignment_version: int = 1
    role: Role = Role.OWNER
    confirmed: bool = True
    as_of_ms: int | None = None
    lag_epochs: int = 0

    def __post_init__(self) -> None:
        self.codec = StateCodec(self.descriptor)
        self.key_groups = self.key_groups or frozenset(range(self.descriptor.key_groups))

    def put(self, key: Any, row: bytes) -> None:
        """`row` as the codec encodes it."""
        self.rows[self.codec.storage_key(key)] = row

    def source(self, server: str) -> state_pb2.Source:
        """Of answers now."""
        return state_pb2.Source(
            server=server,
            role=state_pb2.ROLE_OWNER if self.role is Role.OWNER else state_pb2.ROLE_STANDBY,
            epoch=self.epoch,
            commit_time_ms=1_000 * self.epoch,
            generation=self.generation,
            assignment_version=self.assignment_version,
            unconfirmed=not self.confirmed,
            as_of_ms=_now_ms() if self.as_of_ms is None else self.as_of_ms,
            lag_epochs=self.lag_epochs,
        )

    def check(self, server: str, bounds: ReadBounds) -> None:
        """Raises EpochNotReached or TooStale."""
        if self.epoch < bounds.min_epoch:
            raise EpochNotReached(
                f"the state is at epoch {self.epoch} on server {server}; min_epoch asks for {bounds.min_epoch}",
                epoch=self.epoch,
            )
        age_ms = 0 if self.as_of_ms is None else _now_ms() - self.as_of_ms if self.as_of_ms else float("inf")
        if bounds.max_staleness_ms and age_ms > bounds.max_staleness_ms:
            raise TooStale(
                f"the copy of server {server} is {age_ms} ms old; max_staleness asks for {bounds.max_staleness_ms} ms",
                age_ms=age_ms,
            )


class FakeServer:
    """Make and use it inside one event loop.

    Attributes:
        states: By application and state: what it owns.
        standbys: What it follows.
        refuse: Set it, and every read is refused with it.
        hold: While cleared, frames of Lookup wait, and so do scans.
        held: Lookup streams of which a frame waits.
        hold_after: Scans wait only from this entry on; 0: before they answer anything.
        scans: Scans under way.
        streams: Lookup streams that are open.
        frames: Frames answered so far.
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
        self.scans = 0
        self.streams = 0
        self.frames = 0
        self.draining = False
        self.protocol_version = PROTOCOL_VERSION
        self._change = asyncio.Event()
        self._rpc = RpcServer("fake-server", "127.0.0.1", port, security)

    @property
    def address(self) -> str:
        """host:port; known after `start`."""
        return self._rpc.address

    @property
    def port(self) -> int:
        """Known after `start`."""
        return self._rpc.port

    async def start(self) -> None:
        """Serves."""
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
        """As `host`, a standby copy."""
        state = HostedState(descriptor, key_groups=frozenset(key_groups), role=Role.STANDBY)
        for key, row in (rows or {}).items():
            state.put(key, row)
        self.standbys[descriptor.application, descriptor.state] = state
        self.changed()
        return state

    def copies(self, name: tuple[str, str]) -> list[HostedState]:
        """Of one state, what it owns before what it follows."""
        return [copies[name] for copies in (self.states, self.standbys) if name in copies]

    def all_copies(self) -> list[HostedState]:
        """Of all states."""
        return [*self.states.values(), *self.standbys.values()]

    def changed(self) -> None:
        """Tells all ownership streams."""
        self._change.set()
        self._change = asyncio.Event()

    def holding(self, state: HostedState) -> pb.StateHolding:
        """As servers tell it."""
        return pb.StateHolding(
            descriptor=convert.descriptor_to_proto(state.descriptor),
            server=self.server,
            key_groups=sorted(state.key_groups),
            source=state.source(self.server),
            entries=len(state.rows),
            ready=state.ready,
        )

    def status(self) -> pb.ServerStatus:
        """As servers tell it."""
        holdings = [self.holding(state) for state in self.all_copies()]
        return pb.ServerStatus(
            server=self.server,
            address=self.address,
            holdings=holdings,
            protocol_version=self.protocol_version,
        )

    async def ownership(self) -> AsyncIterator[state_server_pb2.Ownership]:
        """Now and after every change."""
        while True:
            change = self._change
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
            descriptor=convert.descriptor_to_proto(copies[0].descriptor),
            holdings=[self._server.holding(state) for state in copies],
        )

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802
        return pb.GetResponse(answer=self._get(request.state, [request.key], request.options)[0])

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802
        return pb.GetManyResponse(answers=self._get(request.state, list(request.keys), request.options))

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802
        return pb.StatusResponse(servers=[self._server.status()])

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
        finally:
            self._server.streams -= 1

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802
        copies = self._copies(request.state)
        within = scan_range(copies[0].codec, request)
        if copies[0].descriptor.scan_key:  # else it is the key group itself
            _check(copies[0], [within.prefix])
        (state,) = self._chosen(copies, [within.prefix], request.options)
        entries = _entries(state, within, request)
        source = state.source(self._server.server)
        self._server.scans += 1
        try:
            for at in range(0, len(entries) or 1, PAGE_ENTRIES):
                if at >= self._server.hold_after:
                    await self._server.hold.wait()
                page = entries[at : at + PAGE_ENTRIES]
                yield pb.ScanResponse(
                    source=source, map_keys=[key for key, _ in page], values=[value for _, value in page]
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
            check_frame(request)
            copies = self._copies(request.state)
            state = copies[0]
            if request.storage_keys and request.topic_id != state.descriptor.topic_id:
                raise StaleDescriptor("these storage keys are of another state; describe it again")
            keys = list(request.storage_keys) or _encoded(state, list(request.keys))
            values, chosen, failures = self._lookup_apart(copies, keys, request.options)
            name = f"{request.state.application}/{request.state.state}"
            failures += failures_to_proto(cut_to_frame(name, values))
        except KeyholeError as error:
            count = key_count(request)
            failure = pb.LookupFailure(error=status.to_proto(error))
            return pb.LookupResponse(frame=request.frame, values=[b""] * count, failures=[failure])
        return pb.LookupResponse(
            frame=request.frame,
            values=values,
            sources=[state.source(self._server.server) for state in copies],
            source_of=[copies.index(state) for state in chosen] if len(copies) > 1 else (),
            failures=failures,
        )

    def _get(self, ref: pb.StateRef, keys: list[pb.Key], options: pb.ReadOptions) -> list[pb.Answer]:
        copies = self._copies(ref)
        values, chosen = self._lookup(copies, _encoded(copies[0], keys), options)
        check_answer(f"{ref.application}/{ref.state}", values, len(keys))
        return [
            pb.Answer(found=bool(value), value=value, source=state.source(self._server.server))
            for value, state in zip(values, chosen, strict=True)
        ]

    def _lookup_apart(
        self, copies: list[HostedState], keys: list[bytes], options: pb.ReadOptions
    ) -> tuple[list[bytes], list[HostedState], list[pb.LookupFailure]]:
        """As `_lookup`; where that is refused for now, key group by key group: those that can't be read fail alone."""
        try:
            return (*self._lookup(copies, keys, options), [])
        except UnavailableError:
            values, chosen = [b""] * len(keys), [copies[0]] * len(keys)
        failures = []
        for group in {key[:GROUP_BYTES] for key in keys}:
            indexes = [index for index, key in enumerate(keys) if key[:GROUP_BYTES] == group]
            try:
                part, of = self._lookup(copies, [keys[index] for index in indexes], options)
            except UnavailableError as error:
                failures.append(pb.LookupFailure(indexes=indexes, error=status.to_proto(error)))
                continue
            for index, value, state in zip(indexes, part, of, strict=True):
                values[index], chosen[index] = value, state
        return values, chosen, failures

    def _lookup(
        self, copies: list[HostedState], keys: list[bytes], options: pb.ReadOptions
    ) -> tuple[list[bytes], list[HostedState]]:
        """The values, and which copy each is of."""
        _check(copies[0], keys)
        chosen = self._chosen(copies, keys, options)
        return [_value(state, key, options) for key, state in zip(keys, chosen, strict=True)], chosen

    def _chosen(self, copies: list[HostedState], keys: list[bytes], options: pb.ReadOptions) -> list[HostedState]:
        """Of all keys, before any is answered: one that can't be fails the request."""
        if self._server.refuse is not None:
            raise self._server.refuse
        check_consistency(options)
        bounds = convert.bounds_from_proto(options)
        chosen = [self._choose(copies, group_of(key), bounds.stale) for key in keys]
        for state in copies:
            if state in chosen:
                state.check(self._server.server, bounds)
        return chosen

    def _choose(self, copies: list[HostedState], key_group: int, stale: Stale) -> HostedState:
        server = self._server.server
        having = [state for state in copies if key_group in state.key_groups]
        for state in having:
            if not state.ready or (stale is Stale.NEVER and state.role is Role.STANDBY):
                continue
            if stale is Stale.NEVER and not state.confirmed:
                raise Unconfirmed(f"server {server} has not heard of its coordinator; a newer owner may exist")
            return state
        if any(not state.ready for state in having):
            raise NotReady(f"server {server} is restoring {copies[0].descriptor.state}: 3 of 10 records")
        raise NotOwner(f"server {server} does not own that key group")

    def _copies(self, ref: pb.StateRef) -> list[HostedState]:
        copies = self._server.copies((ref.application, ref.state))
        if not copies:
            known = sorted(self._server.states.keys() | self._server.standbys.keys())
            names = ", ".join(f"{application}/{name}" for application, name in known)
            kind = (
                UnknownState if any(ref.application == application for application, _ in known) else UnknownApplication
            )
            raise kind(f"no state {ref.application}/{ref.state}; there are: {names}", states=names)
        return copies


def _check(state: HostedState, keys: list[bytes]) -> None:
    if keys and not are_storage_keys(keys, state.descriptor.key_groups):
        raise MalformedRequest("not storage keys of this state")
    if any(len(key) > MAX_KEY_BYTES for key in keys):
        raise KeyTooLong(f"a key is longer than the store takes: {MAX_KEY_BYTES} bytes, encoded")


def _entries(state: HostedState, within: EntryRange, request: pb.ScanRequest) -> list[tuple[bytes, bytes]]:
    """Map keys and values, as of now."""
    prefix, start, stop = within
    found = sorted(key for key in state.rows if start <= key and (stop is None or key < stop))
    if request.descending:
        found.reverse()
    return [(key[len(prefix) :], _value(state, key, request.options)) for key in found[: request.limit or None]]


def _value(state: HostedState, key: bytes, options: pb.ReadOptions) -> bytes:
    row = state.rows.get(key, b"")
    return state.codec.row_to_json(row).encode() if row and options.format == pb.VALUE_FORMAT_JSON else row


def _now_ms() -> int:
    return SystemClock().now_ms()


def _encoded(state: HostedState, keys: list[pb.Key]) -> list[bytes]:
    values = [convert.key_from_proto(key) for key in keys]
    return [state.codec.storage_key(value if len(value) != 1 else value[0]) for value in values]
