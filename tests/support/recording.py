"""A state server and a coordinator that only keep what a sink in a real streaming query gives them."""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures

import grpc
import msgspec
import pyarrow as pa

from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.model.epoch import EpochStamp, Run
from keyhole.protocol.decisions import Proceed, decide
from keyhole.protocol.epochs import EpochBatch, EpochResult
from keyhole.protocol.receipts import PartitionReceipt, StageOrder, Target
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.sink import Sink
from keyhole.spark.write_path.sink_states import SinkState
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc


class RecordingServer(state_server_pb2_grpc.StateServerServicer):
    """Takes whatever is staged, by (state, epoch, round, partition, attempt)."""

    def __init__(self) -> None:
        self.staged: dict[tuple[str, int, int, int, int], list[tuple[bytes, bytes | None]]] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        state_server_pb2_grpc.add_StateServerServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Stage(  # noqa: N802  # as the proto names it
        self, request_iterator: Iterator[pb.StageRequest], context: grpc.ServicerContext
    ) -> pb.StageResponse:
        header = next(request_iterator).header
        rows: list[tuple[bytes, bytes | None]] = []
        for request in request_iterator:
            table = pa.ipc.open_stream(request.chunk).read_all()
            rows += zip(table["storage_key"].to_pylist(), table["value"].to_pylist(), strict=True)
        self.staged[header.state, header.epoch, header.round, header.partition, header.attempt_id] = rows
        groups: dict[int, list[tuple[bytes, bytes | None]]] = defaultdict(list)
        for key, value in rows:
            groups[int.from_bytes(key[:2], "big")].append((key, value))
        return pb.StageResponse(
            receipts=[
                pb.KeyGroupReceipt(
                    key_group=group,
                    rows=len(members),
                    bytes=sum(len(key) + len(value or b"") for key, value in members),
                    checksum=sum(zlib.crc32(value or b"", zlib.crc32(key)) for key, value in members),
                )
                for group, members in groups.items()
            ]
        )

    def ReadBase(  # noqa: N802  # as the proto names it
        self, request: pb.ReadBaseRequest, context: grpc.ServicerContext
    ) -> pb.ReadBaseResponse:
        """Nothing was there before."""
        return pb.ReadBaseResponse(bases=[pb.Base() for _ in request.storage_keys])

    def stop(self) -> None:
        self._server.stop(None).wait()


class RecordingCoordinator:
    """Stages each batch in as many rounds as it takes, and merges what won into `values`."""

    def __init__(self, query: str, addresses: list[str], server: RecordingServer) -> None:
        self.query = query
        self.epochs: list[EpochBatch] = []
        self.receipts: list[list[PartitionReceipt]] = []
        self.values: dict[bytes, list[object]] = {}
        self.closed = threading.Event()
        self._addresses = addresses
        self._server = server

    def bootstrapped(self, name: str) -> bool:
        raise AssertionError("nothing here is bootstrapped")

    def run_epoch(self, batch: EpochBatch) -> EpochResult:
        epoch, (plan,) = batch.batch_id + 1, batch.states
        stamp = EpochStamp(epoch, 1, 0, batch.watermark_ms)
        self.epochs.append(batch)
        for number, address in enumerate(self._addresses):
            target = Target("server", address, "incarnation")
            routes = {plan.descriptor.state: (0,) * plan.descriptor.key_groups}
            run = Run(plan.descriptor.application, self.query, 1, "run")
            descriptors = {plan.descriptor.state: plan.descriptor}
            receipts = list(batch.stage(StageOrder(run, stamp, number, 1, (target,), routes, 120.0, descriptors)))
            self.receipts.append(receipts)
            decision = decide(receipts, batch.partitions_by_state, [target])
            if isinstance(decision, Proceed):
                self._merge(epoch, number, receipts, plan.replace)
                return EpochResult(stamp, False, number + 1)
        raise AssertionError("no address took the rows")

    def _merge(self, epoch: int, number: int, receipts: list[PartitionReceipt], replace: bool) -> None:
        if replace:
            self.values.clear()
        for receipt in receipts:
            place = (receipt.state, epoch, number, receipt.partition, receipt.attempt_id)
            for key, value in self._server.staged.get(place, []):
                assert value is not None
                self.values[key] = msgspec.msgpack.decode(value)

    def fields(self) -> list[list[object]]:
        """Each key's value without the schema's version, sorted."""
        return sorted(value[1:] for value in self.values.values())

    def close(self) -> None:
        self.closed.set()


class Backend:
    """Makes sinks whose rows go to one recording server; `runs` has the coordinator of each run."""

    def __init__(self, server: RecordingServer) -> None:
        self.server = server
        self.runs: list[RecordingCoordinator] = []
        self.addresses = [server.address]
        self.config = JobConfig("app", (server.address,), "127.0.0.1:1")

    def sink(
        self,
        state: str = "last",
        *,
        key: str = "k",
        order_by: str | None = None,
        query: str | None = None,
        standbys: int = 0,
    ) -> Sink:
        declaration = Declaration(state, (key,), 64, None, order_by, standbys=standbys)
        return Sink((SinkState(declaration),), query, self.config, self._coordinator)

    def _coordinator(self, config: JobConfig, query: str, addresses: Addresses) -> RecordingCoordinator:
        assert addresses() == {self.server.address}
        self.runs.append(RecordingCoordinator(query, self.addresses, self.server))
        return self.runs[-1]
