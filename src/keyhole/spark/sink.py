"""The function that foreachBatch calls: makes each micro-batch one epoch of a state."""

from __future__ import annotations

import functools
import logging
import re
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame

from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import EpochBatch, EpochResult, StatePlan
from keyhole.coordinator.decisions import offsets_hash
from keyhole.coordinator.receipts import PartitionReceipt, StageOrder
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.spark.batch import MicroBatch, OutputMode, classic, current, state_operators
from keyhole.spark.executors import ServerAddresses, live_executors
from keyhole.spark.partitioning import by_key_group, column
from keyhole.spark.reducing import check_increments, reduced_columns
from keyhole.spark.schema import Declaration, describe
from keyhole.spark.task import RECEIPT_SCHEMA, stage_task
from keyhole.types import StateDescriptor, StateKind

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class EpochRunner(Protocol):
    """What the sink needs of a Coordinator."""

    def run_epoch(self, batch: EpochBatch) -> EpochResult: ...

    def close(self) -> None: ...


Addresses = Callable[[], Collection[str]]
"""host:port of each state server now."""

OnCommit = Callable[[int], object]
"""Is told an epoch that is complete: all servers have it, and readers see it."""

MakeCoordinator = Callable[[JobConfig, str, Addresses], EpochRunner]
"""(configuration, the query's stable name, servers) -> the coordinator of one run. Must not block: the first epoch may.
"""


class Sink:
    """Give it to `writeStream.foreachBatch`, or call it from your own function there. Made by `queryable`.

    One sink feeds one state from one running query at a time. It is called on the thread on which Spark calls back;
    everything it starts ends with the query, however that ends.
    """

    def __init__(
        self,
        declaration: Declaration,
        query: str | None,
        config: JobConfig,
        make_coordinator: MakeCoordinator,
        on_commit: OnCommit | None = None,
    ) -> None:
        self._declaration = declaration
        self._query = query
        self._config = config
        self._make_coordinator = make_coordinator
        self._on_commit = on_commit
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._failure: KeyholeError | None = None

    @property
    def failure(self) -> KeyholeError | None:
        """What the last batch ended with, if not well. Any thread.

        Spark wraps what a foreachBatch function raises into an error that only quotes it as text; this is the error
        itself, for whoever decides whether to start the query again.
        """
        return self._failure

    def __call__(self, data: DataFrame, batch_id: int) -> None:
        """Commits the rows as an epoch; returns when all servers have it.

        Blocks for as long as it takes, at most `KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS`. Runs the data frame's plan once,
        and once more for every round that a lost server costs.

        Raises:
            KeyMismatch, ValueMismatch: The batch's columns don't fit the declaration.
            InvalidConfiguration: Called outside of a streaming query, or two sinks share a query name; the query feeds
                a reducing state with more than what is new; or KEYHOLE_JOB_SERVERS is wrong.
            KeyholeError: As Coordinator.run_epoch. Nothing of the batch is visible, or all of it will be: the query may
                be started again.
            Exception: What `on_commit` raised. The epoch is complete; the restarted query tells it again.
        """
        self._failure = None
        try:
            epoch = self._commit(data, batch_id)
        except KeyholeError as error:
            self._failure = error
            raise
        if self._on_commit is not None:
            self._on_commit(epoch)

    def _commit(self, data: DataFrame, batch_id: int) -> int:
        """The epoch that the batch became."""
        frame = classic(data)
        batch = current(frame, batch_id)
        query = self._query_name(batch)
        descriptor = describe(self._declaration, self._config.application, query, frame.schema)
        self._claim(frame, batch, query)
        key = [column.name for column in descriptor.key]
        rows, partitions = by_key_group(frame, batch.execution, key, descriptor.key_groups)
        run = self._run_of(batch, query, frame.sparkSession.sparkContext)
        result = run.coordinator.run_epoch(
            EpochBatch(
                spark_query_id=batch.query_id,
                batch_id=batch_id,
                offsets_hash=offsets_hash(batch.offsets),
                watermark_ms=batch.watermark_ms,
                states=(self._plan(descriptor, batch.output_mode),),
                partitions=partitions,
                stage=functools.partial(_stage, rows.select(*_staged_columns(descriptor)), descriptor, partitions),
                offsets=batch.log_entry,
                stateful=run.stateful,
            )
        )
        _log.debug(
            "committed",
            extra={"query": query, "epoch": result.epoch, "replayed": result.replayed, "rounds": result.rounds},
        )
        return result.epoch

    def _plan(self, descriptor: StateDescriptor, mode: OutputMode) -> StatePlan:
        return StatePlan(descriptor, replace=mode is OutputMode.COMPLETE, standbys=self._declaration.standbys)

    def _query_name(self, batch: MicroBatch) -> str:
        """The query's stable name: as given, else Spark's name of it, else the state's."""
        name = self._query or batch.name or self._declaration.state
        return checked_name("the streaming query's name", name, "give the sink another one with query=")

    def _claim(self, frame: DataFrame, batch: MicroBatch, query: str) -> None:
        """Refuses a second sink under one query name in one run: each would take the query over from the other.

        Kept in a local property of the query's JVM thread, which ends with the run.
        """
        context = frame.sparkSession.sparkContext
        holder = f"keyhole.sink.{query}"
        mine = f"{batch.run_id} {self._id} {self._declaration.state}"
        other = (context.getLocalProperty(holder) or "").split(" ")
        if other[0] == batch.run_id and other[1] != self._id:
            raise InvalidConfiguration(
                f"two queryable states ({other[2]!r} and {self._declaration.state!r}) are fed by one streaming query "
                f"under the same name {query!r}; give each sink its own name with query=",
                query=query,
            )
        context.setLocalProperty(holder, mine)

    def _run_of(self, batch: MicroBatch, query: str, context: SparkContext) -> _Run:
        """Made at the run's first batch; its coordinator is closed when the query ends."""
        with self._lock:
            if self._run is None or self._run.run_id != batch.run_id:
                if self._run is not None:
                    self._leave(self._run)
                operators = state_operators(batch.execution)
                if self._declaration.kind is StateKind.REDUCING:
                    check_increments(self._declaration.state, batch.output_mode, operators)
                addresses = ServerAddresses(self._config.servers, functools.partial(live_executors, context))
                coordinator = self._make_coordinator(self._config, query, addresses)
                self._run = _Run(batch.run_id, batch.query, coordinator, stateful=bool(operators))
                threading.Thread(target=self._run.close_at_end, name=f"keyhole-end-{query}", daemon=True).start()
            return self._run

    def _leave(self, run: _Run) -> None:
        """The run before has ended, though perhaps its thread hasn't noticed yet."""
        if run.query.isActive():
            raise InvalidConfiguration(
                f"one sink of state {self._declaration.state!r} was given to two streaming queries that run at once: "
                "a state is fed by one query",
                state=self._declaration.state,
            )
        run.coordinator.close()

    def __reduce__(self) -> tuple[object, ...]:
        # A closure over the sink that Spark ships to its executors would take connections and threads along.
        raise TypeError("a queryable sink belongs to the driver; it can't be sent to Spark's executors")


@dataclass(frozen=True)
class _Run:
    """One start of the streaming query.

    Attributes:
        query: The JVM's StreamExecution.
        stateful: Its plan has operators that keep state of Spark's own.
    """

    run_id: str
    query: JavaObject
    coordinator: EpochRunner
    stateful: bool

    def close_at_end(self) -> None:
        """Waits, in a thread of its own, until the query has ended, in whichever way.

        Not a StreamingQueryListener: its events come through a queue that may be behind, and the last ones are lost
        when the session stops.
        """
        try:
            self.query.awaitTermination()
        except Exception:  # noqa: BLE001  # the query's error, which it reports itself, or no JVM any more: all the same
            _log.debug("the query ended with an error", extra={"run_id": self.run_id})
        finally:
            self.coordinator.close()


def _stage(
    rows: DataFrame, descriptor: StateDescriptor, partitions: int, order: StageOrder
) -> Sequence[PartitionReceipt]:
    """One round: runs the batch's plan over all partitions and collects their receipts, nothing else."""
    task = functools.partial(stage_task, order, descriptor.state)
    collected = rows.mapInArrow(task, RECEIPT_SCHEMA).collect()
    if not collected:
        # Spark has found out, before or while running, that the plan has no rows, and so made no partitions at all.
        # Some that are missing while others are there would be an error, which the coordinator finds.
        return [PartitionReceipt(descriptor.state, partition, attempt_id=0) for partition in range(partitions)]
    return [PartitionReceipt.from_row(bytes(row[0])) for row in collected]


def checked_name(what: str, name: str, remedy: str) -> str:
    """The name, if it can be part of a Kafka topic's and a transactional id.

    Raises:
        InvalidConfiguration: It can't.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidConfiguration(
            f"{what} is {name!r}, but must be 1 to 100 letters, digits, '_' or '-'; {remedy}", name=name
        )
    return name


def _staged_columns(descriptor: StateDescriptor) -> list[Column]:
    """The key's and the value's, as keyhole.arrow.encode takes them."""
    key = [column(part.name) for part in descriptor.key]
    if descriptor.kind is StateKind.REDUCING:
        return key + reduced_columns(descriptor)
    return key + [column(field.name) for field in descriptor.value.fields]
