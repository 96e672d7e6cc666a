"""Real state servers inside a test's event loop, on real sockets, over the in-memory changelog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pyarrow as pa

from keyhole.clock import SystemClock
from keyhole.config import StateServerConfig
from keyhole.coordinator.task_stream import chunks
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import STORAGE_KEY, VALUE, ipc_stream
from keyhole.encoding.storage_key import group_of
from keyhole.errors import NotReady
from keyhole.model.epoch import Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord, record
from keyhole.protocol.failpoints import NoObserver
from keyhole.protocol.receipts import Target
from keyhole.rpc import channels, convert, status
from keyhole.rpc.convert_writes import run_to_proto
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.stores.base import StoreEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc
from services.state_server.app import StateServer
from tests.support.waiting import LONG_SECONDS

LEASE_SECONDS = 1000.0
"""Of these servers: it passes where a test adds to their clock, and by no machine's slowness."""


class AheadClock(SystemClock):
    """The machine's clock, and as much as a test adds."""

    ahead_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_seconds

    def now_ms(self) -> int:
        return super().now_ms() + int(1000 * self.ahead_seconds)


async def _open_run(stub: Any, request: pb.OpenRunRequest) -> None:
    """Asks again where the server is just forgetting the query, as a coordinator does: it looks every second for what
    nobody needs, as one whose assignment was refused.
    """
    async with asyncio.timeout(LONG_SECONDS):
        while True:
            try:
                await stub.OpenRun(request)
                return
            except grpc.aio.AioRpcError as error:
                if not isinstance(status.from_rpc_error(error), NotReady):
                    raise
            await asyncio.sleep(0.01)


class Speaker:
    """A coordinator's part in a server's life: `take`, then `commit`, for one query at a time.

    Args:
        name: What the names of its grants begin with.
        address: host:port of the server, asked for at each call.
    """

    def __init__(self, name: str, address: Callable[[], str], credentials: Credentials = PLAIN) -> None:
        self._name = name
        self._address = address
        self._credentials = credentials
        self.version = 0
        self.epoch = 0
        self._rounds = 0
        self._staged: Sequence[pb.KeyGroupReceipt] = ()

    async def take(self, descriptor: StateDescriptor, owned: Sequence[int] = (), followed: Sequence[int] = ()) -> None:
        """Gives the server these key groups of the state, and no others of its query."""
        self.descriptor, self.owned = descriptor, frozenset(owned)
        self.run = Run(descriptor.application, descriptor.query, 1, "run")
        self.version += 1
        async with channels.aio_channel(self._address(), self._credentials) as channel:
            stub = state_server_pb2_grpc.StateServerStub(channel)
            incarnation = (await stub.Describe(pb.DescribeRequest())).status.incarnation
            self._target = Target("server", self._address(), incarnation)
            run = run_to_proto(self.run)
            grant = f"{self._name}-{self.version}"
            await _open_run(
                stub,
                pb.OpenRunRequest(run=run, incarnation=incarnation, grant=grant, protocol_version=PROTOCOL_VERSION),
            )
            assignment = pb.StateAssignment(
                descriptor=convert.descriptor_to_proto(descriptor), key_groups=owned, standby_key_groups=followed
            )
            request = pb.AssignRequest(
                run=run,
                assignment_version=self.version,
                states=[assignment],
                complete_epoch=self.epoch,
                complete_commit_time_ms=1000 * self.epoch,
                wait_ms=5000,
            )
            async with asyncio.timeout(LONG_SECONDS):
                while not (await stub.Assign(request)).ready:
                    pass

    async def commit(self, rows: Mapping[Any, bytes], watermark_ms: int = 0) -> None:
        """One epoch, committed at 1,000 ms times its number."""
        await self.commit_encoded(self._encoded(rows), watermark_ms)

    def _encoded(self, rows: Mapping[Any, bytes | None]) -> pa.RecordBatch:
        codec = StateCodec(self.descriptor)
        keys = pa.array([codec.storage_key(key) for key in rows], pa.binary())
        return pa.record_batch({STORAGE_KEY: keys, VALUE: pa.array(list(rows.values()), pa.binary())})

    async def commit_encoded(self, batch: pa.RecordBatch, watermark_ms: int = 0) -> None:
        """The same with rows as keyhole.encoding.columnar.encode makes them."""
        await self._commit(await self._stage(batch), watermark_ms)

    async def stage(self, rows: Mapping[Any, bytes | None]) -> None:
        """The rows of the next epoch; None deletes. What was staged of it before is dropped."""
        self._staged = await self._stage(self._encoded(rows))

    async def commit_staged(self) -> None:
        """Commits what was staged last."""
        await self._commit(self._staged)

    async def _stage(self, batch: pa.RecordBatch) -> Sequence[pb.KeyGroupReceipt]:
        self._rounds += 1
        header = pb.StageHeader(
            run=run_to_proto(self.run),
            incarnation=self._target.incarnation,
            assignment_version=self.version,
            state=self.descriptor.state,
            epoch=self.epoch + 1,
            round=self._rounds,
            attempt_id=self._rounds,
            effect=pb.STAGE_EFFECT_MERGES,
        )
        async with channels.aio_channel(self._address(), self._credentials) as channel:
            stub = state_server_pb2_grpc.StateServerStub(channel)
            rows_in_chunks = [pb.StageRequest(chunk=ipc_stream(chunk)) for chunk in chunks(batch)]
            staged = await stub.Stage(iter([pb.StageRequest(header=header), *rows_in_chunks]))
        return list(staged.receipts)

    async def _commit(self, receipts: Sequence[pb.KeyGroupReceipt], watermark_ms: int = 0) -> None:
        self.epoch += 1
        part = pb.StateCommit(
            state=self.descriptor.state,
            winners=[pb.Winner(partition=0, attempt_id=self._rounds)],
            receipts=receipts,
        )
        async with channels.aio_channel(self._address(), self._credentials) as channel:
            await state_server_pb2_grpc.StateServerStub(channel).Commit(
                pb.CommitRequest(
                    run=run_to_proto(self.run),
                    incarnation=self._target.incarnation,
                    assignment_version=self.version,
                    epoch=self.epoch,
                    round=self._rounds,
                    states=[part],
                    commit_time_ms=1000 * self.epoch,
                    watermark_ms=watermark_ms,
                )
            )

    async def retire(self) -> list[str]:
        """Says of its own query that it is over. Returns the states that were forgotten."""
        request = pb.RetireQueryRequest(
            application=self.run.application, query=self.run.query, run=run_to_proto(self.run)
        )
        async with channels.aio_channel(self._address(), self._credentials) as channel:
            answer = await state_server_pb2_grpc.StateServerStub(channel).RetireQuery(request)
        return [state for of in answer.queries for state in of.states]


class RunningServer:
    """A state server, and a coordinator's part in its life: call `own`, then `commit`; or `follow` (a common Kafka)."""

    def __init__(
        self,
        name: str,
        kafka: MemoryKafka | None = None,
        engine: StoreEngine | None = None,
        security: Mapping[str, str] | None = None,
        credentials: Credentials = PLAIN,
        port: int = 0,
    ) -> None:
        self.clock = AheadClock()
        self._kafka = kafka or MemoryKafka()
        given: Mapping[str, Any] = security or {}
        config = StateServerConfig(bootstrap_servers="memory", id=name, port=port, lease_seconds=LEASE_SECONDS, **given)
        self.server = StateServer(config, engine or MemoryEngine(), self._changelog, self.clock, NoObserver())
        self._speaker = Speaker(name, lambda: self.address, credentials)

    def _changelog(self, application: str) -> MemoryChangelog:
        return MemoryChangelog(self._kafka, application)

    @property
    def address(self) -> str:
        return self.server.address

    async def own(self, descriptor: StateDescriptor, key_groups: Sequence[int] = ()) -> None:
        """These key groups of the state (default: all), whose topic is made anew."""
        if self._speaker.version:
            self._kafka.delete_topic(descriptor.topic)
        self._changelog(descriptor.application).admin().ensure(msgspec.structs.replace(descriptor, topic_id=""), 5)
        await self._speaker.take(descriptor, owned=key_groups or range(descriptor.key_groups))

    async def own_new(self, descriptor: StateDescriptor) -> StateDescriptor:
        """All of a state whose topic is made for it; with the id that the topic has."""
        made = self.made_topic(descriptor)
        await self.own(made)
        return made

    async def share(self, descriptor: StateDescriptor, key_groups: Sequence[int]) -> None:
        """These key groups of a state of which another server of the same Kafka owns the others."""
        await self._speaker.take(descriptor, owned=key_groups)

    def made_topic(self, descriptor: StateDescriptor) -> StateDescriptor:
        """The state, whose topic is made, with the id that the topic has."""
        unnamed = msgspec.structs.replace(descriptor, topic_id="")
        topic_id = self._changelog(descriptor.application).admin().ensure(unnamed, 5)
        return msgspec.structs.replace(descriptor, topic_id=topic_id)

    async def succeed(self, other: RunningServer, key_groups: Sequence[int] = ()) -> None:
        """Owns what another server has owned (default: all), and commits behind that."""
        descriptor = other._speaker.descriptor
        self._speaker.version = max(self._speaker.version, other._speaker.version)
        self._speaker.epoch = other._speaker.epoch
        await self._speaker.take(descriptor, owned=key_groups or range(descriptor.key_groups))

    async def keep(self, key_groups: Sequence[int]) -> None:
        """Owns these of its key groups, and follows the others."""
        of = self._speaker.descriptor
        await self._speaker.take(of, owned=key_groups, followed=sorted(set(range(of.key_groups)) - set(key_groups)))

    async def commit_own(self, rows: Mapping[Any, bytes], watermark_ms: int = 0) -> None:
        """Of these rows, those of its own key groups, as one epoch."""
        codec, owned = StateCodec(self._speaker.descriptor), self._speaker.owned
        own = {key: of for key, of in rows.items() if group_of(codec.storage_key(key)) in owned}
        await self.commit(own, watermark_ms)

    async def evolve(self, descriptor: StateDescriptor) -> None:
        """The same state under another descriptor, all key groups."""
        await self._speaker.take(descriptor, owned=range(descriptor.key_groups))

    async def follow(self, descriptor: StateDescriptor) -> None:
        """All key groups of the state, as a standby."""
        await self._speaker.take(descriptor, followed=range(descriptor.key_groups))

    def complete(self) -> None:
        """Writes the last epoch to the control topic as complete, now."""
        of, epoch = self._speaker.descriptor, self._speaker.epoch
        markers = [self._kafka.end(of.topic, group) - 2 for group in range(of.key_groups)]
        whole = CompleteRecord(epoch, 1, 1000 * epoch, 0, 0, {of.state: markers}, "", self.clock.now_ms())
        control = self._changelog(of.application).control(of.query)
        control.open(5)
        control.append(record("complete", of.query, whole), 5)

    async def commit(self, rows: Mapping[Any, bytes], watermark_ms: int = 0) -> None:
        """See Speaker.commit."""
        await self._speaker.commit(rows, watermark_ms)

    async def commit_encoded(self, batch: pa.RecordBatch) -> None:
        """See Speaker.commit_encoded."""
        await self._speaker.commit_encoded(batch)

    async def stage(self, rows: Mapping[Any, bytes | None]) -> None:
        """See Speaker.stage."""
        await self._speaker.stage(rows)

    async def commit_staged(self) -> None:
        """See Speaker.commit_staged."""
        await self._speaker.commit_staged()

    async def retire(self) -> list[str]:
        """See Speaker.retire."""
        return await self._speaker.retire()


@asynccontextmanager
async def state_server(
    name: str,
    kafka: MemoryKafka | None = None,
    engine: StoreEngine | None = None,
    security: Mapping[str, str] | None = None,
    credentials: Credentials = PLAIN,
    port: int = 0,
) -> AsyncIterator[RunningServer]:
    """Started, and stopped at the end.

    Args:
        engine: Default: in memory.
        security: Settings of StateServerConfig.
        credentials: What the coordinator's part shows.
    """
    running = RunningServer(name, kafka, engine, security, credentials, port)
    await running.server.start()
    try:
        yield running
    finally:
        await running.server.stop()
