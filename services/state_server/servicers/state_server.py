"""What the coordinator, its tasks and the proxies say to a state server: the service StateServer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pyarrow as pa

from keyhole.changelog.base import Changelog
from keyhole.errors import MalformedRequest
from keyhole.model.state import MAX_KEY_GROUPS
from keyhole.protocol.failpoints import Step
from keyhole.rpc.convert import descriptor_from_proto
from keyhole.rpc.convert_stamps import complete_stamp, written_stamp
from keyhole.rpc.convert_writes import (
    base_to_proto,
    receipt_from_proto,
    receipt_to_proto,
    replaces_from_proto,
    run_from_proto,
)
from keyhole.rpc.version import check
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc
from services.state_server.host import QueryHost
from services.state_server.host_settings import HostSettings
from services.state_server.kafka_rights import check_rights
from services.state_server.read.dump import dump
from services.state_server.registry import Registry
from services.state_server.replica.take_over import StateShare
from services.state_server.write.attempts import Attempt
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merging import CommitContext

_Context = grpc.aio.ServicerContext[Any, Any]

_MAX_WAIT_SECONDS = 30.0


class StateServerServicer(state_server_pb2_grpc.StateServerServicer):
    """See protos/keyhole/v1/state_server.proto.

    Args:
        changelog: Makes the changelog of an application.
    """

    def __init__(self, registry: Registry, changelog: Callable[[str], Changelog], settings: HostSettings) -> None:
        self._registry = registry
        self._changelog = changelog
        self._settings = settings

    async def OpenRun(self, request: pb.OpenRunRequest, context: _Context) -> pb.OpenRunResponse:  # noqa: N802 - gRPC
        """Takes a grant, under which this run may write here."""
        check(request.protocol_version, f"the driver of {request.run.application}")
        run = run_from_proto(request.run)
        self._registry.check_incarnation(request.incarnation)
        host = self._registry.host_for(run, request.grant, self._changelog, self._settings)
        await host.open_run(run, request.incarnation, request.grant)
        return pb.OpenRunResponse()

    async def Assign(self, request: pb.AssignRequest, context: _Context) -> pb.AssignResponse:  # noqa: N802 - gRPC
        """Owns and follows these key groups; answers once they are restored, or after `wait_ms`."""
        run = run_from_proto(request.run)
        host = self._registry.host(run)
        states = [
            StateShare(descriptor_from_proto(s.descriptor), frozenset(s.key_groups), frozenset(s.standby_key_groups))
            for s in request.states
        ]
        wait = min(request.wait_ms / 1000, _MAX_WAIT_SECONDS)
        ready = await host.assign(run, request.assignment_version, states, complete_stamp(request), wait)
        restored, total = host.progress()
        return pb.AssignResponse(ready=ready, restored_records=restored, records_to_restore=total)

    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseResponse:  # noqa: N802 - gRPC
        """Gives key groups up; answers once nothing of theirs is in flight."""
        run = run_from_proto(request.run)
        groups, version = frozenset(request.key_groups), request.assignment_version
        await self._registry.host(run).release(run, request.state, groups, version)
        return pb.ReleaseResponse()

    async def Stage(self, requests: AsyncIterator[pb.StageRequest], context: _Context) -> pb.StageResponse:  # noqa: N802 - gRPC
        """Takes one task attempt's rows in; nothing of them counts before the stream has ended."""
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "header":
            raise MalformedRequest("a Stage call begins with a header")
        header = first.header
        run = run_from_proto(header.run)
        host = self._registry.host(run)
        name = Attempt(header.state, header.epoch, header.round, header.partition, header.attempt_id)
        self._settings.observer.reached(Step.SERVER_BEFORE_STAGE, header.epoch)
        replaces = replaces_from_proto(header.effect)
        watermark_ms = header.watermark_ms if header.HasField("watermark_ms") else None
        attempt = host.begin_attempt(run, header.incarnation, header.assignment_version, name, replaces, watermark_ms)
        kept = False
        try:
            async for request in requests:
                await host.add_rows(attempt, _decoder(request.chunk))
            receipts = await host.stage(name, attempt, run)
            kept = True
        finally:
            if not kept:
                host.attempts.discard(attempt)
        return pb.StageResponse(receipts=map(receipt_to_proto, receipts))

    async def ReadBase(self, request: pb.ReadBaseRequest, context: _Context) -> pb.ReadBaseResponse:  # noqa: N802 - gRPC
        """What the tasks of an aggregating state merge with."""
        run = run_from_proto(request.run)
        epoch = CommitContext.of(written_stamp(request))
        bases = await self._registry.host(run).read_base(
            run, request.incarnation, request.assignment_version, request.state, epoch, request.storage_keys
        )
        return pb.ReadBaseResponse(bases=map(base_to_proto, bases))

    async def Commit(self, request: pb.CommitRequest, context: _Context) -> pb.CommitResponse:  # noqa: N802 - gRPC
        """Makes an epoch durable and visible on this server."""
        run = run_from_proto(request.run)
        host = self._registry.host(run)
        epoch = _epoch_to_commit(host, request)
        remaining = context.time_remaining()
        deadline = self._settings.kafka_deadline_seconds
        groups = await host.commit(
            run,
            request.incarnation,
            request.assignment_version,
            epoch,
            deadline if remaining is None else min(deadline, remaining),
        )
        response = pb.CommitResponse()
        for group in groups:
            (response.already_committed if group.already else response.committed).append(
                pb.KeyGroupEpoch(
                    state=group.state,
                    key_group=group.key_group,
                    marker_offset=group.marker_offset,
                    checksum=group.checksum,
                    differs=group.differs,
                )
            )
        return response

    async def Confirm(self, request: pb.ConfirmRequest, context: _Context) -> pb.ConfirmResponse:  # noqa: N802 - gRPC
        """Renews the lease, and says which copies have caught up."""
        run = run_from_proto(request.run)
        host = self._registry.host(run)
        host.confirm(run, request.assignment_version, alone=request.alone)
        host.history.note(request.epochs)
        warm = [pb.WarmKeyGroups(state=state, key_groups=sorted(groups)) for state, groups in host.warm().items()]
        return pb.ConfirmResponse(incarnation=self._registry.incarnation, draining=self._registry.draining, warm=warm)

    async def RetireQuery(self, request: pb.RetireQueryRequest, context: _Context) -> pb.RetireQueryResponse:  # noqa: N802 - gRPC
        """Forgets queries that are over."""
        run = run_from_proto(request.run) if request.HasField("run") else None
        if not request.application or (run and (run.application, run.query) != (request.application, request.query)):
            raise MalformedRequest("what is retired is an application's, and a run retires its own query")
        if request.check_only:
            retired = self._registry.retirable(request.application, request.query, run)
        else:
            retired = await self._registry.retire(request.application, request.query, run)
        return pb.RetireQueryResponse(
            queries=[pb.RetiredQuery(query=query, states=states) for query, states in retired.items()]
        )

    async def Drain(self, request: pb.DrainRequest, context: _Context) -> pb.DrainResponse:  # noqa: N802 - gRPC
        """Gives its key groups to others, or takes some again."""
        if not request.look:
            self._registry.drain(undo=request.undo)
        return pb.DrainResponse(draining=self._registry.draining, owns=self._registry.assigned)

    async def Move(self, request: pb.MoveRequest, context: _Context) -> pb.MoveResponse:  # noqa: N802 - gRPC
        """Wants these key groups, or no more."""
        if not (request.application and request.state and request.key_groups):
            raise MalformedRequest("what is moved are key groups of a state of an application")
        if max(request.key_groups) >= MAX_KEY_GROUPS:
            raise MalformedRequest(f"no state has a key group {max(request.key_groups)}: at most {MAX_KEY_GROUPS}")
        groups = frozenset(request.key_groups)
        now = self._registry.move(request.application, request.query, request.state, groups, undo=request.undo)
        return pb.MoveResponse(key_groups=sorted(now))

    async def Describe(self, request: pb.DescribeRequest, context: _Context) -> pb.DescribeResponse:  # noqa: N802 - gRPC
        """Who this is and what it holds; and whether Kafka lets it write what it would be given."""
        if request.writes and request.query:
            changelog = self._changelog(request.writes)
            await asyncio.to_thread(
                check_rights, self._registry.server, changelog, request.writes, request.query, request.states
            )
        now_ms = self._settings.clock.now_ms()
        return pb.DescribeResponse(status=self._registry.status(now_ms, brief=request.brief))

    async def WatchOwnership(  # noqa: N802 - gRPC
        self, request: pb.WatchOwnershipRequest, context: _Context
    ) -> AsyncIterator[pb.Ownership]:
        """Never ends by itself, but where the server drains."""
        while True:
            change, closing = self._registry.next_change(), self._registry.closing
            yield self._registry.ownership()
            # Not as it is by now: the last message must be one that says that the server drains.
            if closing:
                return
            await change.wait()

    async def Dump(self, request: pb.DumpRequest, context: _Context) -> AsyncIterator[pb.DumpChunk]:  # noqa: N802 - gRPC
        """All that this server's copies hold."""
        table = self._registry.table(request.application, request.state)
        chunks = dump(table, frozenset(request.key_groups))
        # In another thread, one chunk at a time: a store's content takes a while to read.
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk


def _decoder(chunk: bytes) -> Callable[[], tuple[list[bytes], list[bytes | None]]]:
    """Reads a chunk's columns; called on the host's thread, because it takes a while."""

    def decode() -> tuple[list[bytes], list[bytes | None]]:
        try:
            table = pa.ipc.open_stream(chunk).read_all()
            table.validate(full=True)  # its offsets are read without looking: garbage would end the process
            keys, values = table.column("storage_key"), table.column("value")
            if keys.null_count or not (pa.types.is_binary(keys.type) and pa.types.is_binary(values.type)):
                raise MalformedRequest(
                    "a staged chunk has the columns storage_key: binary, not null, and value: binary"
                )
            return keys.to_pylist(), values.to_pylist()
        except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
            raise MalformedRequest("a staged chunk is no Arrow stream of storage_key and value") from error

    return decode


def _epoch_to_commit(host: QueryHost, request: pb.CommitRequest) -> EpochToCommit:
    return EpochToCommit(
        written_stamp(request),
        request.offsets_hash,
        {
            part.state: StateToCommit(
                host.attempts.winners(
                    part.state, request.epoch, request.round, [(w.partition, w.attempt_id) for w in part.winners]
                ),
                list(map(receipt_from_proto, part.receipts)),
                part.replace,
            )
            for part in request.states
        },
        request.next_watermark_ms,
    )
