"""Feeds a state without Spark: the real coordinator and the real staging, rows made by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import grpc
import pyarrow as pa

from keyhole.changelog.base import Changelog
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import Clock, SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.fleet import Addresses
from keyhole.coordinator.heartbeat import HEARTBEAT_SECONDS
from keyhole.coordinator.task_stream import stage_partition
from keyhole.model.state import StateDescriptor
from keyhole.protocol.epochs import EpochBatch, EpochResult, StatePlan
from keyhole.protocol.failpoints import StepObserver
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.rpc.channels import sync_channel


class Feed:
    """One state, the only one of its query. Use as a context manager.

    Args:
        rows: Makes the rows of an epoch, encoded; called once per round.
        changelog: Default: that of the real Kafka.
        addresses: Where the servers are; default: as the configuration says.
        clock: Default: the machine's.
    """

    def __init__(
        self,
        config: JobConfig,
        of: StateDescriptor,
        rows: Callable[[int], Iterable[pa.RecordBatch]],
        *,
        observer: StepObserver | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        changelog: Changelog | None = None,
        addresses: Addresses | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._of = of
        self._rows = rows
        self._batches = 0
        self._channels: dict[str, grpc.Channel] = {}
        self.complete = 0
        """The last complete epoch."""
        self.coordinator = Coordinator(
            config,
            of.query,
            changelog or KafkaChangelog(config.bootstrap_servers, of.application),
            clock or SystemClock(),
            observer=observer,
            heartbeat_seconds=heartbeat_seconds,
            addresses=addresses,
        )

    def epoch(self) -> EpochResult:
        """The next epoch, as one partition; returns when it is complete."""

        def stage(order: StageOrder) -> Sequence[PartitionReceipt]:
            attempt = order.stamp.epoch * 100 + order.round
            return [stage_partition(order, self._of.state, 0, attempt, self._rows(order.stamp.epoch), self._connect)]

        number = self._batches
        result = self.coordinator.run_epoch(
            EpochBatch("spark-query", number, number, 0, (StatePlan(self._of),), 1, stage)
        )
        self._batches += 1
        self.complete = result.epoch
        return result

    def _connect(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            self._channels[address] = sync_channel(address)
        return self._channels[address]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.coordinator.close()
        for channel in self._channels.values():
            channel.close()
