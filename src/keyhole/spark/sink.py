"""The function that foreachBatch calls: makes each micro-batch one epoch of its states."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime

from pyspark.sql import DataFrame

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.model.state import TtlClock
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.epochs import EpochBatch, offsets_hash
from keyhole.spark.driver.cached import kept
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.executors import addresses_of
from keyhole.spark.driver.first_batch import check_workers
from keyhole.spark.driver.micro_batch import OutputMode, current
from keyhole.spark.driver.query_plan import next_watermark_ms
from keyhole.spark.write_path.bootstrap import BOOTSTRAP, bootstrap_batch, checked_bootstrap
from keyhole.spark.write_path.caretakers import MakeCaretaker
from keyhole.spark.write_path.epoch_states import EpochStates
from keyhole.spark.write_path.sink_states import SinkState, runs
from keyhole.spark.write_path.stage_plan import staging_of
from keyhole.spark.write_path.stream_runs import MakeCoordinator, StreamRuns

_log = logging.getLogger(__name__)

OnCommit = Callable[[int], object]
"""Is called with the number of an epoch that is complete: all servers have it, and readers see it."""

OnRows = Callable[[DataFrame, int], object]
"""Gets the batch, and its id, once its epoch is complete."""


class Sink:
    """Give it to `writeStream.foreachBatch`, or call it from your own function there. Made by `queryable`.

    One sink feeds its states from one running query at a time. It is called on the thread on which Spark calls back;
    everything it starts ends with the query, however that ends.
    """

    def __init__(
        self,
        parts: tuple[SinkState, ...],
        query: str | None,
        config: JobConfig,
        make_coordinator: MakeCoordinator,
        on_commit: OnCommit | None = None,
        options: frozenset[str] = frozenset(),
        on_rows: OnRows | None = None,
        on_new_checkpoint: OnNewCheckpoint = "refuse",
        make_caretaker: MakeCaretaker | None = None,
    ) -> None:
        self._parts = parts
        self._query = query
        self._config = config
        self._make_coordinator = make_coordinator
        self._on_commit = on_commit
        self._options = options
        self._on_rows = on_rows
        self._on_new_checkpoint = on_new_checkpoint
        self._make_caretaker = make_caretaker
        self._runs = StreamRuns(parts, query, config, make_coordinator, on_new_checkpoint, make_caretaker)
        self._failure: KeyholeError | None = None

    @property
    def config(self) -> JobConfig:
        """What it was made with."""
        return self._config

    @property
    def parts(self) -> tuple[SinkState, ...]:
        """The states that it feeds."""
        return self._parts

    @property
    def query(self) -> str | None:
        """The query's stable name, as it was given; None: it was not."""
        return self._query

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that it was made with and that concern the query."""
        return self._options

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

        def of_part(part: SinkState) -> SinkState:
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
            self._make_caretaker,
        )

    def parts_alone(self) -> tuple[SinkState, ...]:
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
            InvalidConfiguration: Called outside of a streaming query, or two sinks share a query name. The query feeds
                a reducing state with more than what is new, or has no checkpoint location of its own. Spark's Python
                workers can't load Keyhole. KEYHOLE_JOB_SERVERS is wrong.
            KeyholeError: As Coordinator.run_epoch. Nothing of the batch is visible, or all of it will be: the query may
                be started again.
            Exception: What `on_commit` raised. The epoch is complete; the restarted query calls it with that again.
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
        coordinator = self._make_coordinator(self._config, query, addresses_of(context, self._config.servers))
        try:
            if coordinator.bootstrapped(name):
                return False
            with kept(frame) if runs(self._parts, None) > 1 else nullcontext(frame) as once:
                staged = EpochStates(self._config.application, query).staged(self._parts, once)
                coordinator.run_epoch(bootstrap_batch(name, staged, watermark))
            return True
        finally:
            coordinator.close()

    def _commit(self, data: DataFrame, batch_id: int) -> int:
        """The epoch that the batch became."""
        batch = current(data, batch_id)
        run = self._runs.run_of(batch)
        layout = run.layouts.of_batch(batch.frame, batch.execution)
        several = self._on_rows is not None or runs(self._parts, layout) > 1
        with kept(batch.frame) if several else nullcontext(batch.frame) as rows:
            replaces = batch.output_mode is OutputMode.COMPLETE
            states = EpochStates(self._config.application, run.name, replaces, batch, run.layouts)
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
            run.last.number = batch_id
            if self._on_rows is not None:
                self._on_rows(rows, batch_id)
        _log.debug(
            "committed",
            extra={"query": run.name, "epoch": result.epoch, "replayed": result.replayed, "rounds": result.rounds},
        )
        return result.epoch

    @property
    def _ages(self) -> bool:
        """Entries expire by event time."""
        return any(part.declaration.ttl_clock is TtlClock.EVENT_TIME for part in self._parts)

    def __reduce__(self) -> tuple[object, ...]:
        # A closure over the sink that Spark ships to its executors would take connections and threads along.
        raise TypeError(
            "a queryable sink belongs to the driver; it can't be sent to Spark's executors: give it to "
            "writeStream.foreachBatch(...), not to foreach, and keep it out of functions that Spark runs on rows"
        )
