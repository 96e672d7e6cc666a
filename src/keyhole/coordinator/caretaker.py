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
from keyhole.errors import CheckpointMismatch, ConflictError, EpochFailed, Fenced, KeyholeError
from keyhole.protocol.caretaking import LastSeen, start_without_batch
from keyhole.protocol.control import QueryControl
from keyhole.protocol.membership import Membership
from keyhole.protocol.start import Start

_log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
"""Between two looks at who has the query."""


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
        self._run = QueryRun(config, query, changelog, self._control, self._fleet, clock)
        self._admission = Admission(config, query, changelog, self._fleet, self._run, clock, "refuse")
        self._changes = ChangeLock()
        self._left = threading.Event()
        # Held while it takes the query. Nothing is taken once it has left.
        self._taking = threading.Lock()
        self._counts = counts
        self._heartbeat_seconds = heartbeat_seconds
        self._heartbeat: Heartbeat | None = None
        self._seen: LastSeen | None = None
        self._known = self._taken = self._restoring = self._settled = False
        self._told = ""

    @property
    def membership(self) -> Membership:
        """Which servers hold what, as far as it knows. Any thread."""
        return self._run.membership

    def run(self, alive: Callable[[], bool] = lambda: True) -> bool:
        """Returns when it has left, the streaming query has ended, or there is nothing for it to do; all is closed.

        Args:
            alive: Whether the streaming query still runs. Asked once a second.

        Returns:
            Whether another one is to begin: this one can't know what is on record.
        """
        try:
            while not self._left.is_set() and alive() and self._stepped():
                self._clock.wait(self._left, 0.0 if self._restoring else STEP_SECONDS)
            return self._run.uncertain and not self._left.is_set()
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

    def _stepped(self) -> bool:
        """`step`, with what went wrong in the log, once each."""
        try:
            return self.step()
        except Fenced as error:
            if not self._left.is_set():
                _log.warning("another run has the query", extra={"query": self._query, "why": error.message})
            return False
        except KeyholeError as error:
            if error.message != self._told and not self._left.is_set():
                self._told = error.message
                _log.warning(
                    "the query has no owners before its first batch", extra={"query": self._query, "why": error.message}
                )
            # What refuses a start goes on refusing it. What a server refuses, another can hold.
            return not self._run.uncertain and (self._taken or not isinstance(error, ConflictError))
        except Exception:  # noqa: BLE001 - the top of a loop; were it to end, nobody would try again
            _log.exception("a step failed unexpectedly", extra={"query": self._query})
            return True

    def step(self) -> bool:
        """Looks, or takes the query, or restores it. Returns whether there is anything left to do.

        Raises:
            Fenced: Another run has taken the query.
            ConflictError: A batch would be refused; or a server can't hold what it is given.
            KeyholeError: Not now; the next step tries again.
        """
        if self._taken:
            if not self._settled:
                self._converge()
            return self._run.fenced is None and not self._run.uncertain
        # Behind a transaction that is open, records may be missing.
        self._known = self._known or any(self._may_begin(self._run.known(decided=of)) for of in (False, True))
        if not self._known:
            return False
        if not self._unheld():
            return True
        self._admission.check_records(self._decide)
        if self._take():
            self._begin_heartbeat()
            self._converge()
        return self._taken

    def beat(self) -> None:
        """One heartbeat, in the caller's thread. As Coordinator.beat; once the query is taken."""
        assert self._heartbeat is not None
        self._heartbeat.beat()

    def _begin_heartbeat(self) -> None:
        seconds, counts = self._heartbeat_seconds, self._counts()
        self._heartbeat = Heartbeat(self._query, self._run, self._changes, counts, self._clock, self._left, seconds)
        self._heartbeat.start()

    def _may_begin(self, control: QueryControl) -> Start | None:
        return start_without_batch(self._query, control, self._spark_query_id, self._standbys)

    def _decide(self, control: QueryControl) -> Start:
        start = self._may_begin(control)
        if start is None:
            raise CheckpointMismatch("the query is another one by now", query=self._query)
        return start

    def _unheld(self) -> bool:
        """Nobody has the query, and there are servers to give it to: both for as long as a run may not be heard of."""
        before, self._seen = self._seen, None
        seen = self._fleet.observe()
        able = [of.target for of in seen.values() if not (of.draining or of.replica)]
        for refusal in self._fleet.refusing(self._config.application, able) if able else self._fleet.refused.values():
            raise refusal
        everyone = [of.target for of in seen.values()]
        if not able or self._fleet.confirming(self._config.application, self._query, everyone):
            return False
        control, now = self._run.known(), self._clock.monotonic()
        self._seen = before.again(control, now) if before is not None else LastSeen(control, now)
        return self._seen.quiet(now)

    def _take(self) -> bool:
        with self._taking:
            if self._left.is_set():
                return False
            control = self._run.take(self._spark_query_id)
            # Once more: until now others could record.
            self._run.adopt(self._decide(control))
            self._taken = True
            return True

    def _converge(self) -> None:
        """The heartbeat renews the leases meanwhile, and goes on with what is left after it."""
        # No longer than that: while it waits nobody looks whether the query has ended.
        patience = self._config.server_wait_seconds + STEP_SECONDS
        with self._changes.held():
            try:
                self._restoring = False
                self._run.converge(self._clock.monotonic() + patience)
                self._settled = True
            except Fenced as error:
                raise self._run.be_fenced(error) from error
            except EpochFailed as error:
                if self._run.uncertain:
                    raise
                self._restoring = True
                _log.info("waiting for the owners", extra={"query": self._query, "why": error.message})
                return
        _log.info("took the query before its first batch", extra={"query": self._query})
