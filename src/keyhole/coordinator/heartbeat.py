"""The thread that renews the servers' leases, and follows the servers that come and go.

While the query is idle it makes every change of the membership that is planned, and repeats the last complete epoch's
record; while a round's tasks stage it makes those that can't wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from keyhole.clock import Clock
from keyhole.coordinator.change_lock import ChangeLock, StagingRound
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.run import QueryRun
from keyhole.errors import Fenced, KeyholeError

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0


class Heartbeat:
    """See the module's text.

    Args:
        changes: Held around all but the renewal of leases.
        closed: Set once the query ends: the thread ends, and replaces nobody any more.
        seconds: Between two heartbeats.
    """

    def __init__(
        self,
        query: str,
        run: QueryRun,
        changes: ChangeLock,
        counts: QueryCounts,
        clock: Clock,
        closed: threading.Event,
        seconds: float,
    ) -> None:
        self._query = query
        self._run = run
        self._changes = changes
        self._counts = counts
        self._clock = clock
        self._closed = closed
        self._seconds = seconds
        self._thread = threading.Thread(target=self._beat, name=f"keyhole-heartbeat-{query}", daemon=True)

    def start(self) -> None:
        """Once, when the run has taken the query."""
        self._thread.start()

    def join(self) -> None:
        """Returns when the thread has ended, after `closed` was set. Idempotent; also where it was never started."""
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        while not self._clock.wait(self._closed, self._seconds):
            try:
                self.beat()
            except Fenced as error:
                if self._closed.is_set():
                    return  # by who comes after it
                _log.error("a newer run has taken over", extra={"query": self._query, "why": error.message})
                return
            except KeyholeError as error:
                _log.warning("heartbeat failed", extra={"query": self._query, "why": error.message})
            except Exception:  # noqa: BLE001 - the top of a loop; were it to end, so would the leases, unheard
                _log.exception("heartbeat failed unexpectedly", extra={"query": self._query})

    def beat(self, patience_seconds: float | None = None) -> None:
        """One heartbeat, in the caller's thread. See Coordinator.beat."""
        if self._run.fenced is not None:
            raise self._run.fenced
        patience = self._seconds if patience_seconds is None else patience_seconds
        # Without the lock: a batch that ends meanwhile does not wait for servers that don't answer.
        unconfirmed = self._run.confirm() if self._changes.staging is not None else None
        with self._changes.held_if_free() as held:
            if held:
                self._change(unconfirmed, patience)
            elif unconfirmed is None:
                # An epoch under way speaks to the servers too, but its tasks may take long: keep the leases all the
                # same.
                self._run.confirm()

    def _change(self, unconfirmed: Sequence[str] | None, patience_seconds: float) -> None:
        """With the lock. `unconfirmed`: the members that did not confirm just now; None: nobody was asked."""
        try:
            if self._changes.staging is not None:
                if unconfirmed is not None:
                    self._replace_urgent(self._changes.staging, unconfirmed, patience_seconds)
                return
            # First: a run that can't write to the control topic may have been replaced, and must confirm nobody.
            self._run.repeat_complete()
            for server in self._run.confirm():
                self._run.distrust(server)
            self._run.converge(self._clock.monotonic() + patience_seconds)
        except Fenced as error:
            raise self._run.be_fenced(error) from error
        finally:
            self._counts.note_membership(self._run.run.generation, self._run.membership)

    def _replace_urgent(self, staging: StagingRound, unconfirmed: Sequence[str], patience_seconds: float) -> None:
        seen, before = self._run.look(), self._run.changes
        urgent = staging.urgency.of(self._run.membership, unconfirmed, seen, self._clock.monotonic())
        if urgent is None or self._closed.is_set():
            return
        # After a change, which costs the round, all that is left of it, and whatever else is planned.
        if not urgent and before == staging.changes:
            return
        try:
            self._run.converge(self._clock.monotonic() + patience_seconds, seen)
        finally:
            if self._run.changes != before:
                _log.warning(
                    "changed servers while a batch runs", extra={"query": self._query, "urgent": sorted(urgent)}
                )
