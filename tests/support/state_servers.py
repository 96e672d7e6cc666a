"""Real state servers inside a test's event loop, on real sockets, over the in-memory changelog."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pyarrow as pa

from keyhole.clock import SystemClock
from keyhole.codec import StateCodec
from keyhole.config import StateServerConfig
from keyhole.coordinator.receipts import Target
from keyhole.coordinator.servers import run_to_proto
from keyhole.rpc import channels, convert
from keyhole.steps import NoObserver
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.types import Run, StateDescriptor
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc
from services.state_server.app import StateServer


class RunningServer:
    """A state server, and a coordinator's part in its life: call `own`, then `commit`."""

    def __init__(self, name: str) -> None:
        self._kafka = MemoryKafka()
        config = StateServerConfig(bootstrap_servers="memory", id=name, port=0)
        self.server = StateServer(config, MemoryEngine(), self._changelog, SystemClock(), NoObserver())
        self._version = 0
        self._epoch = 0

    def _changelog(self, application: str) -> MemoryChangelog:
        return MemoryChangelog(self._kafka, application)

    @property
    def address(self) -> str:
        return self.server.address

    async def own(self, descriptor: StateDescriptor) -> None:
        """All key groups of the state, whose topic is made anew."""
        self._descriptor = descriptor
        application = descriptor.application
        if self._version:
            self._kafka.delete_topic(descriptor.topic)
        self._changelog(application).admin().ensure(msgspec.structs.replace(descriptor, topic_id=""), 5)
        self._run = Run(application, descriptor.query, 1, "run")
        self._version += 1
        async with channels.aio_channel(self.address) as channel:
            stub = state_server_pb2_grpc.StateServerStub(channel)
            incarnation = (await stub.Describe(pb.DescribeRequest())).status.incarnation
            self._target = Target("server", self.address, incarnation)
            run = run_to_proto(self._run)
            await stub.OpenRun(pb.OpenRunRequest(run=run, incarnation=incarnation, grant=f"grant-{self._version}"))
            assignment = pb.StateAssignment(
                descriptor=convert.descriptor_to_proto(descriptor), key_groups=range(descriptor.key_groups)
            )
            answer = await stub.Assign(
                pb.AssignRequest(run=run, assignment_version=self._version, states=[assignment], wait_ms=5000)
            )
            assert answer.ready

    async def commit(self, rows: Mapping[object, bytes]) -> None:
        """One epoch, committed at 1,000 ms times its number."""
        self._epoch += 1
        codec, state = StateCodec(self._descriptor), self._descriptor.state
        batch = pa.record_batch(
            {
                "storage_key": pa.array([codec.storage_key(key) for key in rows], pa.binary()),
                "value": pa.array(list(rows.values()), pa.binary()),
            }
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        run = run_to_proto(self._run)
        header = pb.StageHeader(
            run=run,
            incarnation=self._target.incarnation,
            assignment_version=self._version,
            state=state,
            epoch=self._epoch,
            attempt_id=self._epoch,
        )
        async with channels.aio_channel(self.address) as channel:
            stub = state_server_pb2_grpc.StateServerStub(channel)
            chunks = [pb.StageRequest(header=header), pb.StageRequest(chunk=sink.getvalue().to_pybytes())]
            staged = await stub.Stage(iter(chunks))
            part = pb.StateCommit(
                state=state,
                winners=[pb.Winner(partition=0, attempt_id=self._epoch)],
                receipts=staged.receipts,
            )
            await stub.Commit(
                pb.CommitRequest(
                    run=run,
                    incarnation=self._target.incarnation,
                    assignment_version=self._version,
                    epoch=self._epoch,
                    states=[part],
                    commit_time_ms=1000 * self._epoch,
                )
            )


@asynccontextmanager
async def state_server(name: str) -> AsyncIterator[RunningServer]:
    """Started, and stopped at the end."""
    running = RunningServer(name)
    await running.server.start()
    try:
        yield running
    finally:
        await running.server.stop()
