"""The reconcile loop: compares who should own and follow each key group with what the servers hold, and closes the gap.

Each turn looks at the servers, plans one change (keyhole.protocol.plan), and carries it out: fence, grant, release,
record the assignment, assign. The order of these steps is what makes it safe; docs/protocol.md says why. A grant is on
record before a server may write under it, whoever is on record is fenced before anyone takes over, and an assignment is
on record before any server gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.query_log import QueryLog
from keyhole.coordinator.server_calls import Desired, ServerCalls
from keyhole.coordinator.topics import check_complete
from keyhole.coordinator.waiting import Waiting
from keyhole.errors import KeyholeError, OutcomeUnknown, StageLost, UnavailableError
from keyhole.model.epoch import Run
from keyhole.model.epoch_times import EpochTimes
from keyhole.protocol.control import AssignmentRecord, CompleteRecord, GrantRecord, QueryControl
from keyhole.protocol.grant_names import transactional_id
from keyhole.protocol.membership import Held, Member, Membership, Sighting, owning, placed_by, takers
from keyhole.protocol.plan import AssignmentChange, plan_change
from keyhole.protocol.receipts import Target

_log = logging.getLogger(__name__)


class Reconciler:
    """See the module's text. Not thread-safe: under the coordinator's ChangeLock, but for `confirm`.

    Args:
        if_it_waits: As Waiting takes it.

    Attributes:
        membership: Which servers hold what. Replaced as a whole; any thread may read it.
        changes: How many changes of it have begun. What was staged before the last one is lost.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        changelog: Changelog,
        log: QueryLog,
        fleet: Fleet,
        clock: Clock,
        if_it_waits: str = "",
    ) -> None:
        self._config = config
        self._query = query
        self._changelog = changelog
        self._log = log
        self._fleet = fleet
        self._clock = clock
        self._if_it_waits = if_it_waits
        self._calls = ServerCalls(query, fleet, clock)
        self._serial = 0
        self._grants: tuple[GrantRecord, ...] = ()
        self._broken: frozenset[str] = frozenset()
        self._begun = False
        self._seen: Mapping[str, Sighting] = {}
        self._seen_before: Mapping[str, Sighting] = {}
        # What servers have reported of their copies, and under which assignment; replaced as a whole, by any thread.
        self._told: tuple[int, Mapping[str, Held]] = (0, {})
        # What was planned from last and needed no change: most epochs find all of it as it was.
        self._unchanging: object = None
        # Who owned something when the last change began.
        self._owning: frozenset[str] = frozenset()
        self.changes = 0
        self.membership = Membership({}, AssignmentRecord(0, (), {}))

    def begin(self, control: QueryControl) -> None:
        """Goes on from what earlier runs have on record: all of their grants are to be fenced."""
        self._grants = control.grants
        if control.assignment is not None:
            self.membership = Membership({}, control.assignment)

    def confirm(
        self, run: Run, membership: Membership, complete: CompleteRecord | None, recent: Sequence[EpochTimes] = ()
    ) -> list[str]:
        """Renews the leases, and hears which copies are warm. Any thread.

        Args:
            recent: What the last epochs took.

        Returns:
            The members that are gone, don't answer, or have forgotten this run.
        """
        # Of two looks: one that was missed once could still take over, and a server that hears that it is alone may end
        # at once.
        sightings = (*self._seen_before.items(), *self._seen.items())
        able = {name for name, sighting in sightings if sighting.takes_runs}
        warm = self._calls.confirm(run, membership, complete, able, recent)
        self._told = membership.assignment.version, warm
        return [name for name in membership.members if name not in warm]

    def distrust(self, server: str) -> None:
        """The server's grant is no longer any good: the next `converge` fences it and gives it another."""
        self._broken |= {server}

    def look(self) -> Mapping[str, Sighting]:
        """Each server as it was last seen, by its address. Raises as ServerCalls.look."""
        return self._calls.look()

    def converge(
        self, desired: Desired, deadline_monotonic: float, first: Mapping[str, Sighting] | None = None
    ) -> None:
        """Returns when every key group has a live owner that is ready, under grants of this run.

        Whatever is planned and can be done at once is done; copies that are not warm yet are not waited for.

        Args:
            first: What a look has just shown; None: look.

        Raises:
            Fenced: A newer run has taken over.
            NoServer, EpochFailed: Not before the deadline; the message names what was waited for.
            ConflictError: A server can't hold its key groups and waiting won't help (its disk is full). Not of one that
                has come while the run was well, and owns nothing yet: the run goes on without it.
        """
        waiting_for: KeyholeError | None = None
        first_seen: float | None = None
        waiting = Waiting(self._config, self._query, self._fleet, self._clock, deadline_monotonic, self._if_it_waits)
        while True:
            seen = self.look() if first is None else first
            first = None
            self._seen_before, self._seen = self._seen, seen
            now = self._clock.monotonic()
            first_seen = first_seen or (now if seen else None)
            complete = len(seen) >= len(self._fleet.addresses())
            patience = not self._begun and now - (first_seen or now) < self._config.server_wait_seconds
            if not takers(seen):
                for mismatch in self._fleet.mismatched.values():
                    raise mismatch  # no waiting makes it another version
                waiting_for = waiting.nobody(seen)
            elif complete or not patience:
                try:
                    if self._converge_once(desired, seen, deadline_monotonic):
                        return
                    continue
                except (UnavailableError, StageLost, OutcomeUnknown) as error:
                    waiting_for = error
            waiting.go_on(seen, waiting_for)

    def _converge_once(self, desired: Desired, seen: Mapping[str, Sighting], deadline_monotonic: float) -> bool:
        version, warm = self._told
        if version == self.membership.assignment.version:
            self.membership = self.membership.heard(warm)
        known = self.membership, self._grants, seen, self._broken
        if known == self._unchanging:
            return True
        placed = placed_by(seen, desired.run.application)
        change = plan_change(*known, desired.needs, desired.run.generation, placed)
        if change is None:
            self._begun, self._unchanging = True, known
            return True
        self._execute(desired, change, seen, deadline_monotonic)
        return False  # observe once more: a server may have gone meanwhile

    def _execute(
        self, desired: Desired, change: AssignmentChange, seen: Mapping[str, Sighting], deadline_monotonic: float
    ) -> None:
        timeout = self._config.kafka_deadline_seconds
        self.changes += 1
        if self.membership.settled:
            self._owning = owning(self.membership.assignment)
        fenced = set(change.fence)
        handover = self.membership.settled and not (change.fence or change.open)
        # Should anything fail from here on, these may be fenced: also the grant of a server that comes back unchanged.
        self._broken |= {name for name, member in self.membership.members.items() if member.grant in fenced}
        self._fence(change.fence)
        granted = {target.server: self._grant(desired.run, target) for target in change.open}
        self._log.grants(change.fence, granted.values())
        self._grants = (*(grant for grant in self._grants if grant.grant not in fenced), *granted.values())
        self.membership = self.membership.begun(fenced)
        self._broken = frozenset()
        newcomers = self._newcomers()
        targets = {name: seen[name].target for name in granted}
        self._calls.open_run(desired.run, granted, targets, timeout, newcomers)
        if change.release:
            self.membership = replace(self.membership, released=True)
            self._calls.release(desired.run, self.membership, change.release, timeout, newcomers)
        if not handover:
            # Everyone who could write has been fenced, or stays.
            check_complete(self._changelog, desired.complete, desired.descriptors, self._clock, timeout)
        self._log.assignment(change.assignment)
        opened = {name: Member(targets[name], grant.grant) for name, grant in granted.items()}
        # A failure from here on begins again with this assignment: its version is never used for another one, because a
        # server takes a version that it has seen for done.
        self.membership = self.membership.assigned(opened, change.assignment, change.goal)
        self._calls.assign(desired, self.membership.members, change.assignment, deadline_monotonic, newcomers)
        self.membership = replace(self.membership, settled=True)

    def _newcomers(self) -> Mapping[str, Sighting]:
        """The servers without whom the query was well."""
        if not self._begun:
            return {}
        return {name: of for name, of in self._seen.items() if name not in self._owning}

    def _grant(self, run: Run, target: Target) -> GrantRecord:
        self._serial += 1
        grant = transactional_id(run.application, run.query, target, run.generation, self._serial)
        return GrantRecord(target.server, target.incarnation, run.generation, grant)

    def _fence(self, grants: Sequence[str]) -> None:
        """In parallel: each takes about half a second, and longer where a transaction has to be decided first."""
        if not grants:
            return
        admin, deadline = self._changelog.admin(), self._config.kafka_deadline_seconds
        with ThreadPoolExecutor(min(16, len(grants)), thread_name_prefix="keyhole-fence") as pool:
            list(pool.map(lambda grant: admin.fence(grant, deadline), grants))
        _log.info("fenced", extra={"query": self._query, "grants": len(grants)})
