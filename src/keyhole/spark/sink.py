"""The function that foreachBatch calls: makes each micro-batch one epoch of its states."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.coordinator.stats import stats_of
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.model.state import TtlClock
from keyhole.protocol.decisions import OnNewCheckpoint, offsets_hash
from keyhole.protocol.epochs import EpochBatch, EpochResult
from keyhole.spark.driver.cached import kept
from keyhole.spark.driver.executors import ServerAddresses, live_executors
from keyhole.spark.driver.feeding import check_feed
from keyhole.spark.driver.first_batch import check_checkpoint, check_workers
from keyhole.spark.driver.micro_batch import (
    MicroBatch,
    OutputMode,
    classic,
    current,
    next_watermark_ms,
    state_operators,
)
from keyhole.spark.driver.partitioning import layout_of
from keyhole.spark.driver.progress import follow_progress
from keyhole.spark.write_path.bootstrap import BOOTSTRAP, bootstrap_batch, checked_bootstrap
from keyhole.spark.write_path.sink_states import Part, PartStaging, runs
from keyhole.spark.write_path.stage_plan import staging_of

_log = logging.getLogger(__name__)

_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class EpochRunner(Protocol):
    """What the sink needs of a Coordinator."""

    def bootstrapped(self, name: str) -> bool: ...

    def run_epoch(self, batch: EpochBatch) -> EpochResult: ...

    def close(self) -> None: ...


OnCommit = Callable[[int], object]
"""Is told an epoch that is complete: all servers have it, and readers see it."""

OnRows = Callable[[DataFrame, int], object]
"""Gets the batch, and its id, once its epoch is complete."""

MakeCoordinator = Callable[[JobConfig, str, Addresses], EpochRunner]
"""(configuration, the query's stable name, servers) -> the coordinator of one run. Must not block: the first epoch may.
"""


class Sink:
    """Give it to `writeStream.foreachBatch`, or call it from your own function there. Made by `queryable`.

    One sink feeds its states from one running query at a time. It is called on the thread on which Spark calls back;
    everything it starts ends with the query, however that ends.
    """

    def __init__(
        self,
        parts: tuple[Part, ...],
        query: str | None,
        config: JobConfig,
        make_coordinator: MakeCoordinator,
        on_commit: OnCommit | None = None,
        options: frozenset[str] = frozenset(),
        on_rows: OnRows | None = None,
        on_new_checkpoint: OnNewCheckpoint = "refuse",
    ) -> None:
        self._parts = parts
        self._query = query
        self._config = config
        self._make_coordinator = make_coordinator
        self._on_commit = on_commit
        self._options = options
        self._on_rows = on_rows
        self._on_new_checkpoint = on_new_checkpoint
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._failure: KeyholeError | None = None

    @property
    def config(self) -> JobConfig:
        """What it was made with."""
        return self._config

    @property
    def failure(self) -> KeyholeError | None:
        """What the last batch ended with, if not well. Any thread.

        Spark wraps what a foreachBatch function raises into an error that only quotes it as text; this is the error
        itself, for whoever decides whether to start the query again.
        """
        return self._failure

    def of(self, select: Callable[[DataFrame], DataFrame], *, increments: bool = False) -> Sink:
        """A sink of the same states, whose rows are made of the batch by `select`. For `together`, above all.

        Args:
            increments: What it makes is new with each batch, though the batch brings running results, or the whole
                result: it is merged with, put or appended to what the state holds.

        Raises:
            InvalidConfiguration: `select` is no function.
        """

        if not callable(select):
            raise InvalidConfiguration(
                f"of takes a function that makes the states' rows of the batch, not a {type(select).__name__}"
            )

        def of_part(part: Part) -> Part:
            before = part.select
            made = select if before is None else lambda data: before(select(data))
            return dataclasses.replace(part, select=made, increments=part.increments or increments)

        return Sink(
            tuple(map(of_part, self._parts)),
            self._query,
            self._config,
            self._make_coordinator,
            self._on_commit,
            self._options,
            self._on_rows,
            self._on_new_checkpoint,
        )

    def parts_alone(self) -> tuple[Part, ...]:
        """The states, for a sink that has others too.

        Raises:
            InvalidConfiguration: It was made with options that concern the query.
        """
        if self._options:
            raise InvalidConfiguration(
                f"state {self._parts[0].declaration.state!r} was made with {', '.join(sorted(self._options))}, which "
                "concerns the whole query; give it to queryable.together instead"
            )
        return self._parts

    def __call__(self, data: DataFrame, batch_id: int) -> None:
        """Commits the rows as an epoch; returns when all servers have it.

        Blocks for as long as it takes, at most `KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS`. Runs the data frame's plan once,
        and once more for every round that a lost server costs. Where several make something of it each, the batch is
        kept (as `persist` does) meanwhile.

        Raises:
            KeyMismatch, ValueMismatch: The batch's columns don't fit the declaration.
            InvalidConfiguration: Called outside of a streaming query, or two sinks share a query name; the query feeds
                a reducing state with more than what is new, or has no checkpoint location of its own; Spark's Python
                workers can't load Keyhole; or KEYHOLE_JOB_SERVERS is wrong.
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

    def bootstrap(self, rows: DataFrame, *, name: str = BOOTSTRAP, watermark: datetime | None = None) -> bool:
        """Makes the rows of a plain data frame what the states begin with, as one epoch, before their stream.

            history = spark.read.parquet("/history/payments")
            spent = queryable.reducing("spent", key="customer", reducers={"amount": "sum"}, query="payments")
            spent.bootstrap(history)  # does nothing when the job is started again
            payments.writeStream.foreachBatch(spent).option("checkpointLocation", ...).start()

        Exactly once: a bootstrap is known by its name. One that was broken off is finished by calling it again, with
        the same rows; one that is done is not done again, and its rows aren't computed. The stream that follows starts
        with a new checkpoint and needs no other option. The rows are staged and merged as those of a batch; where they
        make several states they are kept (as `persist` does) meanwhile. Blocks, at most
        `KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS`. `on_commit` is not called.

        Args:
            watermark: The event time up to which the history goes, aware; for states whose ttl goes by event time.

        Returns:
            Whether it has been done now.

        Raises:
            StateConflict: The states have begun otherwise; it says what can be done.
            InvalidConfiguration: The sink has no `query=`, or an operator state; the rows are a stream's; `watermark`
                lacks.
            KeyMismatch, ValueMismatch: The columns don't fit the declaration.
            KeyholeError: As Coordinator.run_epoch. Call it again, with the same rows.
        """
        frame = classic(rows)
        query = checked_bootstrap(self._parts, frame, self._query, watermark)
        context = frame.sparkSession.sparkContext
        check_workers(context)
        coordinator = self._coordinator(query, context)
        try:
            if coordinator.bootstrapped(name):
                return False
            with kept(frame) if runs(self._parts, None) > 1 else nullcontext(frame) as once:
                staged = PartStaging(self._config.application, query).staged(self._parts, once)
                coordinator.run_epoch(bootstrap_batch(name, staged, watermark))
            return True
        finally:
            coordinator.close()

    def _commit(self, data: DataFrame, batch_id: int) -> int:
        """The epoch that the batch became."""
        frame = classic(data)
        batch = current(frame, batch_id)
        query = self._query_name(batch)
        self._claim(frame, batch, query)
        run = self._run_of(batch, query, frame.sparkSession)
        layout = layout_of(frame, batch.execution)
        several = self._on_rows is not None or runs(self._parts, layout) > 1
        with kept(frame) if several else nullcontext(frame) as rows:
            replaces = batch.output_mode is OutputMode.COMPLETE
            states = PartStaging(self._config.application, query, replaces, batch)
            staged = states.staged(self._parts, rows, layout)
            result = run.coordinator.run_epoch(
                EpochBatch(
                    spark_query_id=batch.query_id,
                    batch_id=batch_id,
                    offsets_hash=offsets_hash(batch.offsets),
                    watermark_ms=batch.watermark_ms,
                    **staging_of(staged),
                    offsets=batch.log_entry,
                    stateful=run.stateful,
                    next_watermark_ms=functools.partial(next_watermark_ms, batch) if self._ages else None,
                )
            )
            if self._on_rows is not None:
                self._on_rows(rows, batch_id)
        _log.debug(
            "committed",
            extra={"query": query, "epoch": result.epoch, "replayed": result.replayed, "rounds": result.rounds},
        )
        return result.epoch

    @property
    def _ages(self) -> bool:
        """Entries expire by event time."""
        return any(part.declaration.ttl_clock is TtlClock.EVENT_TIME for part in self._parts)

    def _query_name(self, batch: MicroBatch) -> str:
        """The query's stable name: as given, else Spark's name of it, else the state's."""
        name = self._query or batch.name or self._parts[0].declaration.state
        return checked_name("the streaming query's name", name, "give the sink another one with query=")

    def _claim(self, frame: DataFrame, batch: MicroBatch, query: str) -> None:
        """Refuses a second sink under one query name in one run: each would take the query over from the other.

        Kept in a local property of the query's JVM thread, which ends with the run.
        """
        context = frame.sparkSession.sparkContext
        holder = f"keyhole.sink.{query}"
        states = ",".join(part.declaration.state for part in self._parts)
        mine = f"{batch.run_id} {self._id} {states}"
        other = (context.getLocalProperty(holder) or "").split(" ")
        if other[0] == batch.run_id and other[1] != self._id:
            raise InvalidConfiguration(
                f"two queryable states ({other[2]!r} and {states!r}) are fed by one streaming query under the same "
                f"name {query!r}; make them one sink with queryable.together, or give each its own name with query=",
                query=query,
            )
        context.setLocalProperty(holder, mine)

    def _run_of(self, batch: MicroBatch, query: str, session: SparkSession) -> _Run:
        """Made at the run's first batch; its coordinator is closed when the query ends."""
        with self._lock:
            if self._run is None or self._run.run_id != batch.run_id:
                if self._run is not None:
                    self._leave(self._run)
                check_checkpoint(
                    query,
                    str(batch.query.resolvedCheckpointRoot()),
                    self._on_new_checkpoint,
                    name=batch.name,
                    common=session.conf.get(_CHECKPOINTS, None),
                )
                check_workers(session.sparkContext)
                operators = state_operators(batch.execution)
                for part in self._parts:
                    check_feed(part.declaration, batch, operators, part.aggregator, increments=part.increments)
                coordinator = self._coordinator(query, session.sparkContext)
                self._follow(batch, query)
                self._run = _Run(batch.run_id, batch.query, coordinator, stateful=bool(operators))
                threading.Thread(target=self._run.close_at_end, name=f"keyhole-end-{query}", daemon=True).start()
            return self._run

    def _coordinator(self, query: str, context: SparkContext) -> EpochRunner:
        addresses = ServerAddresses(self._config.servers, functools.partial(live_executors, context))
        return self._make_coordinator(self._config, query, addresses)

    def _follow(self, batch: MicroBatch, query: str) -> None:
        """Spark's own progress, where somebody may ask for it."""
        stats = stats_of(self._config)
        if stats.served:
            follow_progress(batch.query, batch.run_id, stats.counts.spark(query))

    def _leave(self, run: _Run) -> None:
        """The run before has ended, though perhaps its thread hasn't noticed yet."""
        if run.query.isActive():
            raise InvalidConfiguration(
                f"one sink of state {self._parts[0].declaration.state!r} was given to two streaming queries that run "
                "at once: a state is fed by one query",
                state=self._parts[0].declaration.state,
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


def checked_name(what: str, name: str, remedy: str) -> str:
    """The name, if it can be part of a Kafka topic's and a transactional id.

    Raises:
        InvalidConfiguration: It can't.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidConfiguration(
            f"{what} is {name!r}, but must be 1 to 100 letters, digits, '_' or '-'; {remedy}", name=name
        )
    return name
