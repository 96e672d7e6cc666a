"""Simulated servers and driver, and real tasks of an aggregating state: what they stage is of what the owners hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from keyhole.coordinator.task_stream import NotTaken
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import OP, STORAGE_KEY, VALUE
from keyhole.protocol.epochs import EpochBatch
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.spark.worker.aggregating import Aggregation, aggregated
from tests.support.applications import KAFKA_ENTRY
from tests.support.simulation import PARTITIONS, World
from tests.support.states import names_in
from tests.support.versions import VERSIONS

NAMES = [names_in(group)[0] for group in range(4)]


class Tasks(World):
    """Its batches are rows of numbers by key."""

    def batch(self, batch_id: int, rows: Any, *arguments: Any, **options: Any) -> EpochBatch:
        made = super().batch(batch_id, {}, *arguments, **options)

        def stage(order: StageOrder) -> list[PartitionReceipt]:
            try:
                staged = self.staged(order, rows)
            except NotTaken as error:
                lost = (error.receipt,)
                return [PartitionReceipt("counts", of, 1_000_000 + of, lost) for of in range(PARTITIONS)]
            return [self._stage(order, partition, staged) for partition in range(PARTITIONS)]

        return dataclasses.replace(made, stage=stage, offsets=KAFKA_ENTRY)

    def staged(self, order: StageOrder, rows: Mapping[str, list[int]]) -> dict[bytes, bytes | None]:
        of = order.descriptors["counts"]
        keys = [name for name, numbers in rows.items() for _ in numbers]
        numbers = [number for numbers in rows.values() for number in numbers]
        batch = pa.record_batch({"k": pa.array(keys, pa.string()), "v": pa.array(numbers, pa.int64())})
        batch = batch.append_column(OP, pa.array(["put"] * len(keys), pa.string()))
        aggregation = Aggregation(VERSIONS[of.class_version](), ("v",))
        found: dict[bytes, bytes | None] = {}
        for some in aggregated(order, of, aggregation, [batch], self.channel):
            found |= zip(some.column(STORAGE_KEY).to_pylist(), some.column(VALUE).to_pylist(), strict=True)
        return found

    def channel(self, address: str) -> Any:
        return _Channel(self, address.partition(":")[0])

    def starts_anew(self, version: int) -> None:
        """The job is stopped, and started again with that version of its class."""
        self.driver_dies()
        self.descriptor = msgspec.structs.replace(self.descriptor, class_version=version)


class _Channel:
    """As much of one as a stub of ReadBase takes."""

    def __init__(self, world: Tasks, server: str) -> None:
        self._world = world
        self._server = server

    def unary_unary(self, method: str, *_: object, **__: object) -> Callable[..., Any]:
        return lambda request, timeout: self._world.deliver(self._server, method.rpartition("/")[2], request)

    stream_unary = unary_stream = unary_unary


def found(world: Tasks) -> list[dict[str, tuple[int, int]]]:
    """The results that each server tells, standbys included."""
    codec = StateCodec(world.descriptor)
    keys = [codec.storage_key(name) for name in NAMES]
    results = []
    for server in world.servers.values():
        rows = server.tables["app", "counts"].lookup(keys).rows
        held = {name: codec.decode_row(row) for name, row in zip(NAMES, rows, strict=True) if row is not None}
        results.append({name: (row.total, row.rows) for name, row in held.items()})
    return results
