"""Fills states without Spark: the real coordinator, the real staging, rows made here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.task_stream import stage_partition
from keyhole.encoding.columnar import encode
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.rpc.channels import sync_channel

APPLICATION = "benchmark"


def descriptor(state: str, key_groups: int, ttl_ms: int = 0) -> StateDescriptor:
    """Key `sensor` (string), value (temperature double, readings bigint): as the Flink benchmark's. ttl_ms 0: none."""
    return StateDescriptor(
        application=APPLICATION,
        state=state,
        query=state,
        kind=StateKind.VALUE,
        key_groups=key_groups,
        key=(KeyColumn("sensor", KeyType.STRING),),
        value=ValueSchema(1, (ValueField("temperature", "double"), ValueField("readings", "bigint"))),
        ttl_ms=ttl_ms,
    )


def rows(of: StateDescriptor, sensors: Sequence[str], epoch: int) -> pa.RecordBatch:
    """One row per sensor, encoded as a Spark task would."""
    count = len(sensors)
    columns = {
        "sensor": pa.array(sensors),
        "temperature": pa.array(np.arange(count) * 0.1 + epoch),
        "readings": pa.array(np.full(count, epoch, dtype=np.int64)),
    }
    return encode(pa.RecordBatch.from_pydict(columns), of)


class Loader:
    """One state, fed epoch by epoch. Use as a context manager."""

    def __init__(
        self, bootstrap_servers: str, servers: tuple[str, ...], of: StateDescriptor, standbys: int = 0
    ) -> None:
        self._descriptor = of
        self._standbys = standbys
        self._epochs = 0
        self._channels = {address: sync_channel(address) for address in servers}
        config = JobConfig(APPLICATION, servers, bootstrap_servers)
        changelog = KafkaChangelog(bootstrap_servers, APPLICATION)
        self._coordinator = Coordinator(config, of.query, changelog, SystemClock())

    def epoch(self, batch: pa.RecordBatch) -> None:
        """Stages and commits encoded rows as one partition; returns when the epoch is complete."""

        def stage(order: StageOrder) -> list[PartitionReceipt]:
            return [stage_partition(order, self._descriptor.state, 0, order.round, [batch], self._channels.__getitem__)]

        self._coordinator.run_epoch(
            EpochBatch(
                spark_query_id="benchmark",
                batch_id=self._epochs,
                offsets_hash=self._epochs,
                watermark_ms=0,
                states=(StatePlan(self._descriptor, standbys=self._standbys),),
                partitions=1,
                stage=stage,
            )
        )
        self._epochs += 1

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self._coordinator.close()
        for channel in self._channels.values():
            channel.close()
