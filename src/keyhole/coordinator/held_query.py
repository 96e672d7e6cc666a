"""What each run is made of that holds a query until a newer one comes, whether by epochs or fed by updates."""

from __future__ import annotations

import contextlib
import threading

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.admission import Admission
from keyhole.coordinator.change_lock import ChangeLock
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Addresses, Fleet, fleet_of
from keyhole.coordinator.heartbeat import Heartbeat
from keyhole.coordinator.run import QueryRun
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.membership import Membership


class HeldQuery:
    """See the module's text. Whoever derives from it takes the query, and starts the heartbeat then.

    Args:
        addresses: Where the state servers are, closed with this; default: as `config.servers` says.
        clock: All of its time.
        heartbeat_seconds: Between two heartbeats that it makes by itself.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        changelog: Changelog,
        clock: Clock,
        *,
        on_new_checkpoint: OnNewCheckpoint,
        addresses: Addresses | None,
        fleet: Fleet | None,
        heartbeat_seconds: float,
        counts: QueryCounts | None,
    ) -> None:
        self._config = config
        self._query = query
        self._clock = clock
        self._control = changelog.control(query)
        # What looks for servers ends with the run.
        self._ending = contextlib.ExitStack()
        self._fleet = fleet or fleet_of(config, addresses, self._ending)
        self._counts = counts or QueryCounts()
        self._run = QueryRun(config, query, changelog, self._control, self._fleet, clock, counts=self._counts)
        self._admission = Admission(config, query, changelog, self._fleet, self._run, clock, on_new_checkpoint)
        self._changes = ChangeLock()
        self._closed = threading.Event()
        self._heartbeat = Heartbeat(
            query, self._run, self._changes, self._counts, clock, self._closed, heartbeat_seconds
        )

    def beat(self, patience_seconds: float | None = None) -> None:
        """Beats once, in the caller's thread: renews the leases, and follows the servers that come and go. It makes all
        changes where no epoch is under way, and those that can't wait while a batch is being staged.

        Args:
            patience_seconds: For how long changes are tried again; below 0: they are tried once. Default: until the
                next heartbeat.

        Raises:
            Fenced: A newer run has taken the query over: this one can change nothing any more, and is to be closed.
            KeyholeError: What keeps the servers from being replaced; the next heartbeat tries again.
        """
        self._heartbeat.beat(patience_seconds)

    @property
    def membership(self) -> Membership:
        """Which servers hold what, as far as this run knows. Any thread."""
        return self._run.membership

    def close(self) -> None:
        """Ends the heartbeat and the connections. Servers keep what they own, and go on, until another run comes.
        Idempotent.
        """
        self._closed.set()
        self._heartbeat.join()
        self._control.close()
        self._fleet.close()
        self._ending.close()
