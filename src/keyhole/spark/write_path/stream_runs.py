"""Which run of the stream a batch is of: each start of a query has a coordinator of its own, which ends with it."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError

from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.coordinator.stats import stats_of
from keyhole.errors import InvalidConfiguration
from keyhole.model.names import checked_name
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.epochs import EpochBatch, EpochResult
from keyhole.spark.driver.executors import addresses_of
from keyhole.spark.driver.feeding import check_feed
from keyhole.spark.driver.first_batch import check_checkpoint, check_workers
from keyhole.spark.driver.layout import RunLayouts
from keyhole.spark.driver.micro_batch import MicroBatch
from keyhole.spark.driver.progress_listener import follow_progress
from keyhole.spark.driver.query_plan import plan_of
from keyhole.spark.write_path.caretakers import CARETAKERS, CaredName, MakeCaretaker
from keyhole.spark.write_path.sink_states import SinkState

_log = logging.getLogger(__name__)

_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


class EpochRunner(Protocol):
    """What the sink needs of a Coordinator."""

    def bootstrapped(self, name: str) -> bool: ...

    def run_epoch(self, batch: EpochBatch) -> EpochResult: ...

    def close(self) -> None: ...


MakeCoordinator = Callable[[JobConfig, str, Addresses], EpochRunner]
"""(configuration, the query's stable name, servers) -> the coordinator of one run. Must not block: the first epoch may.
"""


@dataclass
class LastBatch:
    """The number of the last batch of a run that became an epoch; -1: none yet."""

    number: int = -1


@dataclass(frozen=True)
class StreamRun:
    """One start of the streaming query.

    Attributes:
        name: The query's stable one.
        query: The JVM's StreamExecution.
        stateful: Its plan has operators that keep state of Spark's own.
    """

    run_id: str
    name: str
    query: JavaObject
    coordinator: EpochRunner
    stateful: bool
    layouts: RunLayouts = field(default_factory=RunLayouts)
    last: LastBatch = field(default_factory=LastBatch)

    def check_is_new(self, batch: int) -> None:
        """Refuses a second call for one batch: its rows would be taken for those of the first one, sent again.

        Raises:
            InvalidConfiguration: With what to do instead.
        """
        if self.last.number == batch:
            raise InvalidConfiguration(
                f"the sink of query {self.name!r} was called twice for batch {batch}, which is one epoch: give it all "
                "rows at once (DataFrame.union), or make a sink for each part and join them by queryable.together",
                query=self.name,
            )

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


class StreamRuns:
    """The runs that feed one sink's states, one at a time. Any thread.

    Args:
        query: The stable name that the user has given; None: none.
        make_caretaker: For starts that get no batch at once; None: nobody has the query until its first batch.
    """

    def __init__(
        self,
        parts: tuple[SinkState, ...],
        query: str | None,
        config: JobConfig,
        make_coordinator: MakeCoordinator,
        on_new_checkpoint: OnNewCheckpoint,
        make_caretaker: MakeCaretaker | None = None,
    ) -> None:
        self._parts = parts
        self._query = query
        self._config = config
        self._make_coordinator = make_coordinator
        self._on_new_checkpoint = on_new_checkpoint
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._run: StreamRun | None = None
        self.config = config
        self.make_caretaker = make_caretaker
        self.standbys = {part.declaration.state: part.declaration.standbys for part in parts}
        if make_caretaker is not None:
            CARETAKERS.watch(self)

    def name_in(self, name: str | None) -> str:
        """The stable name of a query that they are runs of: as given, else Spark's name of it, else the state's."""
        return self._query or name or self._parts[0].declaration.state

    def feeds_another(self, run_id: str) -> bool:
        """Whether another run than this one feeds the states now. Any thread."""
        run = self._run
        try:
            return run is not None and run.run_id != run_id and bool(run.query.isActive())
        except (Py4JError, OSError):
            return False  # Spark is stopping

    def run_of(self, batch: MicroBatch) -> StreamRun:
        """Made at the run's first batch; its coordinator is closed when the query ends.

        Raises:
            InvalidConfiguration: Another sink has the query's name in this run, or another query feeds the states. Or
                the query can't feed one of them, or has no checkpoint location of its own. Or Spark's Python workers
                can't load Keyhole. Or the batch was fed already.
        """
        query = self.name_in(batch.name)
        checked_name("the streaming query's name", query, "give the sink another one with query=")
        with self._lock:
            if self._run is None or self._run.run_id != batch.run_id:
                # A second sink asks when it has its first batch, as this one does.
                self._claim(batch, query)
                if self._run is not None:
                    self._leave(self._run)
                self._run = self._begun(batch, query)
            self._run.check_is_new(batch.number)
            return self._run

    def _claim(self, batch: MicroBatch, query: str) -> None:
        """Refuses a second sink under one query name in one run: each would take the query over from the other.

        Kept in a local property of the query's JVM thread, which ends with the run.
        """
        context = batch.frame.sparkSession.sparkContext
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

    def _begun(self, batch: MicroBatch, query: str) -> StreamRun:
        """The run whose first batch this is: its query is looked at, its coordinator made, and its end waited for."""
        session = batch.frame.sparkSession
        context = session.sparkContext
        common = session.conf.get(_CHECKPOINTS, None)
        check_checkpoint(query, batch.location, self._on_new_checkpoint, name=batch.name, common=common)
        check_workers(context)
        plan = plan_of(batch)
        for part in self._parts:
            check_feed(part.declaration, batch.output_mode, plan, part.aggregator, increments=part.increments)
        if self.make_caretaker is not None:
            # The session of the batch is a copy; that of the query may be another one than where the sink was made.
            CARETAKERS.hear(batch.query.sparkSession())
            CARETAKERS.first_batch(CaredName.of(self._config, query), batch.run_id)
        coordinator = self._make_coordinator(self._config, query, addresses_of(context, self._config.servers))
        # Whether or not the job serves figures: servers are sent what the last epochs' batches took.
        follow_progress(batch.query, batch.run_id, stats_of(self._config).counts.spark(query))
        run = StreamRun(batch.run_id, query, batch.query, coordinator, stateful=bool(plan.operators))
        threading.Thread(target=run.close_at_end, name=f"keyhole-end-{query}", daemon=True).start()
        return run

    def _leave(self, run: StreamRun) -> None:
        """The run before has ended, though perhaps its thread hasn't noticed yet."""
        if run.query.isActive():
            raise InvalidConfiguration(
                f"one sink of state {self._parts[0].declaration.state!r} was given to two streaming queries that run "
                "at once: a state is fed by one query",
                state=self._parts[0].declaration.state,
            )
        run.coordinator.close()
