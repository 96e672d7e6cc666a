"""A run of a query that makes no epochs: it gives the key groups their owners, and renews the leases, before a batch.

A streaming query that is started again runs no batch until it has new data. Whoever had its key groups may be gone with
the driver, and nobody would restore them. The caretaker takes the query as it is on record, where nobody else can have
it. All else is decided by the first batch. Its Coordinator takes the query over from the caretaker as from any earlier
run. docs/protocol.md, "Without a batch".

Threads: `run` in one of its own; the heartbeat has another. `leave` comes from the thread of the first batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.admission import Admission
from keyhole.coordinator.change_lock import ChangeLock
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Addresses, Fleet
from keyhole.coordinator.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from keyhole.coordinator.run import QueryRun
from keyhole.errors import (
    CheckpointMismatch,
    ConflictError,
    EpochFailed,
    Fenced,
    KeyholeError,
    ProtocolMismatch,
    SavepointMismatch,
)
from keyhole.protocol.caretaking import LastSeen, start_without_batch
from keyhole.protocol.control import QueryControl
from keyhole.protocol.membership import Membership, takers_of_runs
from keyhole.protocol.start import Start

_log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
"""Between two looks at who has the query."""

SELDOM_SECONDS = 10.0
"""Likewise, where something must pass that takes its time, as an upgrade or a restore."""

FRESH_SECONDS = 2.0
"""For so long it holds that nobody has the query: from the first question of a look until the control log is about to
be opened. In this time all servers are asked, and the records are read."""

_PASSING = (ProtocolMismatch, SavepointMismatch)


class Caretaker:
    """See the module's text. Of one start of a streaming query.

    Args:
        standbys: The states that the job declares, and how many standbys each is to have.
        spark_query_id: Spark's persisted id of the streaming query: nothing is done for a query of another one.
        addresses: Where the state servers are; closed with it.
        counts: Gives those of the query, which it tells of its membership once it has taken it.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        standbys: Mapping[str, int],
        spark_query_id: str,
        changelog: Changelog,
        clock: Clock,
        addresses: Addresses,
        *,
        fleet: Fleet | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        counts: Callable[[], QueryCounts] = QueryCounts,
    ) -> None:
        self._config = config
        self._query = query
        self._standbys = standbys
        self._spark_query_id = spark_query_id
        self._clock = clock
        self._addresses = addresses
        self._control = changelog.control(query)
        self._fleet = fleet or Fleet(addresses, config.credentials)
        # Of counts of its own: that it is fenced, as by each first batch, is nobody's failure.
        self._run = QueryRun(
            config,
            query,
            changelog,
            self._control,
            self._fleet,
            clock,
            if_it_waits="the query has no owners until then, or until its first batch",
        )
        self._admission = Admission(config, query, changelog, self._fleet, self._run, clock, "refuse")
        self._changes = ChangeLock()
        self._left = threading.Event()
        # Held while it takes the query. Nothing is taken once it has left.
        self._taking = threading.Lock()
        self._counts = counts
        self._heartbeat_seconds = heartbeat_seconds
        self._heartbeat: Heartbeat | None = None
        self._seen: LastSeen | None = None
        self._taken = self._settled = False
        self._pause_seconds = STEP_SECONDS
        self._told = ""

    @property
    def membership(self) -> Membership:
        """Which servers hold what, as far as it knows. Any thread."""
        return self._run.membership

    def run(self, alive: Callable[[], bool] = lambda: True) -> bool:
        """Returns when it has left, the streaming query has ended, or there is nothing for it to do; all is closed.

        Args:
            alive: Whether the streaming query still runs. Asked before each step, and within it.

        Returns:
            Whether another one is to begin: this one can't know what is on record, or has begun to take the query in
            vain. A control log is opened once.
        """
        try:
            while not self._left.is_set() and alive() and self._stepped(alive):
                self._clock.wait(self._left, self._pause_seconds)
            return self._spent and not self._left.is_set()
        finally:
            self.close()

    def leave(self) -> None:
        """The query is another run's from now on. Any thread; idempotent.

        Returns once nothing is being taken, which takes no longer than the other run's own start. A restore that is
        under way is not waited for: whoever takes the query fences it.
        """
        self._left.set()
        with self._taking:
            pass

    def close(self) -> None:
        """Ends the heartbeat and the connections; servers keep what they own. For the thread that has it run."""
        self._left.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        self._control.close()
        self._fleet.close()
        self._addresses.close()

    def _stepped(self, alive: Callable[[], bool] = lambda: True) -> bool:
        """`step`, with what went wrong in the log, once each."""
        self._pause_seconds = STEP_SECONDS
        try:
            return self.step(alive)
        except Fenced as error:
            if not self._left.is_set():
                _log.warning("another run has the query", extra={"query": self._query, "why": error.message})
            self._left.set()
            return False
        except KeyholeError as error:
            if error.message != self._told and not self._left.is_set():
                self._told = error.message
                _log.warning(
                    "the query has no owners before its first batch", extra={"query": self._query, "why": error.message}
                )
            passing = isinstance(error, _PASSING)
            if passing and not self._taken:
                self._pause_seconds = SELDOM_SECONDS
            # What else refuses a start goes on refusing it. What a server refuses, another can hold.
            return not self._spent and (self._taken or passing or not isinstance(error, ConflictError))
        except Exception:  # noqa: BLE001 - the top of a loop; were it to end, nobody would try again
            _log.exception("a step failed unexpectedly", extra={"query": self._query})
            return not self._spent

    @property
    def _spent(self) -> bool:
        """It has opened the control log, and does not have the query; or can't know what is on record."""
        return self._run.uncertain or (self._run.run.generation > 0 and not self._taken)

    def step(self, alive: Callable[[], bool] = lambda: True) -> bool:
        """Looks, or takes the query, or restores it. Returns whether there is anything left to do.

        Args:
            alive: As `run` takes it.

        Raises:
            Fenced: Another run has taken the query.
            ConflictError: A batch would be refused; or a server can't hold what it is given.
            KeyholeError: Not now; the next step tries again.
        """
        if self._taken:
            if not self._settled:
                self._converge()
            return self._run.fenced is None and not self._run.uncertain
        began, before = self._clock.monotonic(), self._seen
        self._seen = None
        if not (self._unheard() and alive()):
            return True
        if before is None:
            # What may take long, or fail, comes before the time in which nobody may be heard of.
            self._heartbeat = self._heartbeat or self._new_heartbeat()
            self._admission.check_records(self._decide)
        # The last question before the query is taken.
        control, now = self._run.known(), self._clock.monotonic()
        self._seen = before.again(control, now) if before is not None else LastSeen(control, now)
        if self._seen.quiet(now) and self._take(began):
            self._converge()
        return not self._left.is_set()

    def beat(self) -> None:
        """One heartbeat, in the caller's thread. As Coordinator.beat; once the query is taken."""
        assert self._heartbeat is not None
        self._heartbeat.beat()

    def _new_heartbeat(self) -> Heartbeat:
        seconds, counts = self._heartbeat_seconds, self._counts()
        return Heartbeat(self._query, self._run, self._changes, counts, self._clock, self._left, seconds)

    def _decide(self, control: QueryControl) -> Start:
        start = start_without_batch(self._query, control, self._spark_query_id, self._standbys)
        if start is None:
            raise CheckpointMismatch("the query goes on otherwise than it is on record", query=self._query)
        return start

    def _unheard(self) -> bool:
        """There are servers to give the query to, and none has, or may have, heard of a run within its lease."""
        seen = self._fleet.observe()
        able = takers_of_runs(seen)
        refusals = self._fleet.refusing(self._config.application, able) if able else self._fleet.refused.values()
        # Of servers of another version nobody knows what they have heard, also where there are others.
        for refusal in (*self._fleet.mismatched.values(), *refusals):
            raise refusal
        everyone = [of.target for of in seen.values()]
        if not able or self._fleet.confirming(self._config.application, self._query, everyone):
            return False
        return not self._fleet.silent()

    def _take(self, began: float) -> bool:
        """`began`: when the look did which has shown that nobody has the query."""
        with self._taking:
            if self._left.is_set():
                return False
            # Whoever was suspended since, or waited for Kafka, knows nothing any more.
            if self._clock.monotonic() - began > FRESH_SECONDS:
                _log.info("the look took too long: one more", extra={"query": self._query})
                return False
            control = self._run.take(self._spark_query_id)
            # Once more: until now others could record.
            self._run.adopt(self._decide(control))
            self._taken = True
        assert self._heartbeat is not None
        self._heartbeat.start()
        return True

    def _converge(self) -> None:
        """The heartbeat renews the leases meanwhile, and goes on with what is left after it."""
        # No longer than that: while it waits nobody looks whether the query has ended.
        patience = self._config.server_wait_seconds + STEP_SECONDS
        with self._changes.held():
            try:
                self._run.converge(self._clock.monotonic() + patience)
                self._settled = True
            except Fenced as error:
                raise self._run.be_fenced(error) from error
            except EpochFailed as error:
                if self._run.uncertain:
                    raise
                self._pause_seconds = 0.0  # a restore goes on
                _log.info("waiting for the owners", extra={"query": self._query, "why": error.message})
                return
        _log.info("took the query before its first batch", extra={"query": self._query})
