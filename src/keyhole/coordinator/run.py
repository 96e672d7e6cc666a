"""One run of a query: takes its generation, keeps every key group owned by a live server, and fences all others.

The order of the steps is what makes it safe; docs/protocol.md tells why. In short: a grant is on record before a
server may write under it, whoever is on record is fenced before anyone takes over, and no Commit is sent before a
transactional write to the control topic has succeeded after the server took its grant. So a driver that was superseded
finds out before it can do harm, and a server that was superseded holds a fenced grant.
"""

from __future__ import annotations

import functools
import logging
import operator
import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import msgspec

from keyhole.changelog.base import Changelog, ControlLog
from keyhole.changelog.settings import CONTROL_TRANSACTION_MOST_SECONDS
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.local_lock import turns_of
from keyhole.coordinator.registration import Make, declare_new
from keyhole.coordinator.server_link import Confirmed, Share
from keyhole.coordinator.topics import check_complete, refuse_foreign_records, with_topic
from keyhole.coordinator.waiting import Waiting
from keyhole.errors import (
    ChangelogRecreated,
    ConflictError,
    EpochFailed,
    Fenced,
    KeyholeError,
    OutcomeUnknown,
    RequestError,
    ServerLost,
    StageLost,
    UnavailableError,
)
from keyhole.model.epoch import Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import (
    AssignmentRecord,
    CompleteRecord,
    GenerationRecord,
    GrantRecord,
    OpenedRecord,
    QueryControl,
    QueryRecord,
    read_control,
    record,
)
from keyhole.protocol.decisions import OnNewCheckpoint, taken_over_by, transactional_id
from keyhole.protocol.membership import Held, Member, Membership, Sighting, followed_by, groups_of, owning, takers
from keyhole.protocol.plan import Change, Needs, plan_change
from keyhole.protocol.receipts import Target
from keyhole.protocol.takeover import check_restored

_log = logging.getLogger(__name__)

OPEN_SECONDS = CONTROL_TRANSACTION_MOST_SECONDS + 10.0
"""How long Kafka may take to end a transaction that somebody has left open, behind which nothing can be read."""
_RESTORE_WAIT_SECONDS = 2.0


class QueryRun:
    """Not thread-safe: the coordinator holds its lock around every call but `confirm`.

    Args:
        open_seconds: For what stands behind a transaction that Kafka must end.

    Attributes:
        changes: How many changes of the membership have begun. What was staged before the last one is lost.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        changelog: Changelog,
        control: ControlLog,
        fleet: Fleet,
        clock: Clock,
        *,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self._config = config
        self._query = query
        self._changelog = changelog
        self._control = control
        self._fleet = fleet
        self._clock = clock
        self._open_seconds = open_seconds
        self._serial = 0
        self._grants: tuple[GrantRecord, ...] = ()
        self._broken: frozenset[str] = frozenset()
        self._begun = False
        self._needs: dict[str, Needs] = {}
        self._seen: Mapping[str, Sighting] = {}
        self._seen_before: Mapping[str, Sighting] = {}
        # What servers have told of their copies, and under which assignment; replaced as a whole, by any thread.
        self._told: tuple[int, Mapping[str, Held]] = (0, {})
        # What was planned from last and needed no change: most epochs find all of it as it was.
        self._unchanging: object = None
        # Who owned something when the last change began; and by server, the incarnation that has refused what it was
        # given, and owned nothing.
        self._owning: frozenset[str] = frozenset()
        self._left_out: dict[str, str] = {}
        self.changes = 0
        self.run = Run(config.application, query, 0, uuid.uuid4().hex)
        self._opened = OpenedRecord(self.run.run_id, socket.gethostname(), os.getpid())
        self.descriptors: dict[str, StateDescriptor] = {}
        self.complete: CompleteRecord | None = None
        self.membership = Membership({}, AssignmentRecord(0, (), {}))

    def known(self, *, decided: bool = False) -> QueryControl:
        """What the control topic says, without taking the query over: nobody is fenced.

        Args:
            decided: Nothing is missing that was recorded before: what is behind an open transaction is waited for.

        Raises:
            KafkaUnreachable: Also where that is open for longer than `open_seconds`.
        """
        deadline = self._config.kafka_deadline_seconds
        try:
            if decided:
                records = self._control.read_decided(deadline + self._open_seconds)
            else:
                records = self._control.read(deadline)
        except ChangelogRecreated:
            records = {}  # there is no control topic: the application is new
        return read_control(records, self._query)

    def take(self, spark_query_id: str = "") -> QueryControl:
        """Takes the query over from any earlier run, which can record nothing from now on.

        Args:
            spark_query_id: What others are told of this run, beside its process; empty: none.

        Raises:
            KafkaUnreachable: Also where what earlier runs have recorded can't be read yet. May be called again.
            SavepointMismatch: The application is being restored.
        """
        self._opened = msgspec.structs.replace(self._opened, spark_query_id=spark_query_id)
        self._control.open(self._config.kafka_deadline_seconds)
        # Of earlier runs' last grants, which must be fenced, and of their generation none may be missing.
        control = self._recorded()
        generation = control.generation + 1
        self.run = Run(self._config.application, self._query, generation, self.run.run_id)
        self._append(record("generation", self._query, GenerationRecord(generation, self.run.run_id)))
        self._grants = control.grants
        self.complete = control.complete
        if control.assignment is not None:
            self.membership = Membership({}, control.assignment)
        _log.info("took the query", extra={"query": self._query, "generation": generation})
        return control

    def superseded(self, error: Fenced) -> Fenced:
        """The error, and who has taken the query over, as far as the control topic tells."""
        try:
            who, facts = taken_over_by(self.known(), self.run)
        except KeyholeError as unread:
            who, facts = f"by whom could not be read ({unread.message})", {}
        return Fenced(
            f"query {self._query!r} was taken over from its run {self.run.generation}, which must stop: {who}. "
            f"({error.message})",
            **(error.facts | facts),
        )

    def _recorded(self) -> QueryControl:
        """What the control topic says, with all that was recorded, by whomever, before this is called.

        Kafka shows nothing beyond a transaction that is still open, such as that of another query whose driver died in
        it: once a record of ours can be read, all can that was recorded before it.

        Raises:
            SavepointMismatch: The application is being restored.
        """
        self._append(record("opened", self._query, self._opened))
        records = self._control.read(self._config.kafka_deadline_seconds + self._open_seconds)
        return check_restored(read_control(records, self._query))

    def declare(
        self,
        control: QueryControl,
        wanted: Mapping[StateDescriptor, int],
        on_new_checkpoint: OnNewCheckpoint,
        query: QueryRecord,
    ) -> None:
        """Makes the changelogs of new states, and records what is new of the states and the query.

        States that the application doesn't have come first, in a step of their own: whoever may not have one of them
        records nothing.

        Args:
            wanted: The states as they were settled, and how many standbys each is to have.

        Raises:
            ConflictError: See ChangelogAdmin.ensure, and `declare_new`.
        """
        make = partial(self._made, on_new_checkpoint)
        new = self._declare_new([of for of in wanted if of.state not in control.states], make)
        records: dict[str, bytes | None] = {}
        if query != control.query:
            records |= record("query", self._query, query)
        for descriptor, standbys in wanted.items():
            name = descriptor.state
            if name in new:
                self.descriptors[name] = new[name]
            else:
                stored = control.states[name]
                self.descriptors[name] = make(descriptor, stored)
                if stored != self.descriptors[name]:
                    records |= record("state", name, self.descriptors[name])
            self._needs[name] = Needs(descriptor.key_groups, standbys)
        if records:
            self._append(records)

    def _declare_new(self, wanted: Sequence[StateDescriptor], make: Make) -> dict[str, StateDescriptor]:
        def known() -> dict[str, StateDescriptor]:
            # It also fails where a newer run of the query declares the same.
            return self._recorded().states

        if not wanted:
            return {}
        config = self._config
        turns = turns_of(config.bootstrap_servers, config.application)
        try:
            deadline = config.kafka_deadline_seconds
            return declare_new(self._changelog, turns, wanted, known, make, self._clock, deadline)
        except OutcomeUnknown as error:
            raise _restart() from error

    def _made(
        self, on_new_checkpoint: OnNewCheckpoint, descriptor: StateDescriptor, stored: StateDescriptor | None
    ) -> StateDescriptor:
        deadline = self._config.kafka_deadline_seconds
        made = with_topic(self._changelog, descriptor, on_new_checkpoint, deadline)
        if stored is None:
            refuse_foreign_records(self._changelog, descriptor, deadline)
        elif stored.topic_id != made.topic_id and self.complete is not None:
            # The new topic has none of the old one's markers.
            markers = {name: of for name, of in self.complete.markers.items() if name != descriptor.state}
            self.complete = msgspec.structs.replace(self.complete, markers=markers)
        return made

    def settle(self, records: Mapping[str, None]) -> None:
        """Deletes what only the first run after a restore had to know."""
        if records:
            self._append(records)

    def record_complete(self, complete: CompleteRecord) -> None:
        """Raises Fenced where a newer run exists."""
        told = msgspec.structs.replace(complete, told_ms=self._clock.now_ms())
        self._append(record("complete", self._query, told))
        self.complete = told

    def repeat_complete(self) -> None:
        """Tells those who follow the control topic that the last complete epoch is still the last one."""
        if self.complete is not None:
            self.record_complete(self.complete)

    def confirm(self) -> list[str]:
        """Renews the leases, and hears which copies are warm. Any thread.

        Returns:
            The members that are gone, don't answer, or have forgotten this run.
        """
        membership, complete = self.membership, self.complete
        version = membership.assignment.version
        # Of two looks: one that was missed once could still take over, and who is told to be alone may end at once.
        sightings = (*self._seen_before.items(), *self._seen.items())
        able = {name for name, sighting in sightings if not (sighting.draining or sighting.replica)}
        calls = {}
        for name, member in membership.members.items():
            link = self._fleet.link(member.target)
            calls[name] = link, partial(link.confirm, self.run, version, complete, alone=not able - {name})
        answers = self._fleet.ask("Confirm", calls)
        confirmed = {
            name: answer
            for name, answer in answers.items()
            if isinstance(answer, Confirmed) and answer.incarnation == membership.members[name].target.incarnation
        }
        self._told = version, {name: answer.warm for name, answer in confirmed.items()}
        return [name for name in membership.members if name not in confirmed]

    def distrust(self, server: str) -> None:
        """The server's grant is no longer any good: the next `converge` fences it and gives it another."""
        self._broken |= {server}

    def look(self) -> Mapping[str, Sighting]:
        """The servers that answer now, by id, but for those left out, unless there are no others. See Fleet."""
        seen = self._fleet.observe()
        wanted = {name: of for name, of in seen.items() if self._left_out.get(name) != of.target.incarnation}
        return wanted if takers(wanted) else seen

    def converge(self, deadline_monotonic: float, first: Mapping[str, Sighting] | None = None) -> None:
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
        waiting = Waiting(self._config, self._query, self._fleet, self._clock, deadline_monotonic)
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
                    if self._converge_once(seen, deadline_monotonic):
                        return
                    continue
                except (UnavailableError, StageLost, OutcomeUnknown) as error:
                    waiting_for = error
            waiting.go_on(seen, waiting_for)

    def _converge_once(self, seen: Mapping[str, Sighting], deadline_monotonic: float) -> bool:
        version, warm = self._told
        if version == self.membership.assignment.version:
            self.membership = self.membership.heard(warm)
        known = self.membership, self._grants, seen, self._broken
        if known == self._unchanging:
            return True
        change = plan_change(*known, self._needs, self.run.generation)
        if change is None:
            self._begun, self._unchanging = True, known
            return True
        self._execute(change, seen, deadline_monotonic)
        return False  # observe once more: a server may have gone meanwhile

    def _execute(self, change: Change, seen: Mapping[str, Sighting], deadline_monotonic: float) -> None:
        timeout = self._config.kafka_deadline_seconds
        self.changes += 1
        if self.membership.settled:
            self._owning = owning(self.membership.assignment)
        fenced = set(change.fence)
        handover = self.membership.settled and not (change.fence or change.open)
        # Should anything fail from here on, these may be fenced: also the grant of a server that comes back unchanged.
        self._broken |= {name for name, member in self.membership.members.items() if member.grant in fenced}
        self._fence(change.fence)
        granted = {target.server: self._grant(target) for target in change.open}
        self._record_grants(change.fence, granted.values())
        self.membership = self.membership.begun(fenced)
        self._broken = frozenset()
        links = {name: self._fleet.link(seen[name].target) for name in granted}
        self._all(
            {
                name: partial(links[name].open_run, self.run, seen[name].target, grant.grant, timeout)
                for name, grant in granted.items()
            }
        )
        if change.release:
            self.membership = replace(self.membership, released=True)
            self._release(change.release, timeout)
        if not handover:
            # Everyone who could write has been fenced, or stays.
            timeout = self._config.kafka_deadline_seconds
            check_complete(self._changelog, self.complete, self.descriptors, self._clock, timeout)
        self._append(record("assignment", self._query, change.assignment))
        opened = {name: Member(seen[name].target, grant.grant) for name, grant in granted.items()}
        # A failure from here on begins again with this assignment: its version is never used for another one, because a
        # server takes a version that it has seen for done.
        self.membership = self.membership.assigned(opened, change.assignment, change.goal)
        self._assign_all(self.membership.members, change.assignment, deadline_monotonic)
        self.membership = replace(self.membership, settled=True)

    def _record_grants(self, fenced: Collection[str], granted: Collection[GrantRecord]) -> None:
        forgotten: dict[str, bytes | None] = {f"grant/{self._query}/{grant}": None for grant in fenced}
        new = [record("grant", f"{self._query}/{grant.grant}", grant) for grant in granted]
        if forgotten or new:
            self._append(functools.reduce(operator.or_, new, forgotten))
        self._grants = (*(grant for grant in self._grants if grant.grant not in fenced), *granted)

    def _release(self, release: Mapping[str, Mapping[str, Sequence[int]]], timeout: float) -> None:
        def give_up(name: str) -> None:
            link = self._fleet.link(self.membership.members[name].target)
            for state, groups in release[name].items():
                link.release(self.run, state, groups, self.membership.assignment.version, timeout)

        self._all({name: partial(give_up, name) for name in release})

    def _assign_all(
        self, members: Mapping[str, Member], assignment: AssignmentRecord, deadline_monotonic: float
    ) -> None:
        complete = self.complete

        def give(member: Member) -> None:
            server = member.target.server
            states = [
                Share(descriptor, groups_of(assignment, server, name), sorted(followed_by(assignment, server, name)))
                for name, descriptor in self.descriptors.items()
            ]
            link = self._fleet.link(member.target)
            while True:
                # No longer than the deadline: a heartbeat that waits renews no leases.
                wait = max(0.0, min(_RESTORE_WAIT_SECONDS, deadline_monotonic - self._clock.monotonic()))
                ready, restored, total = link.assign(self.run, assignment.version, states, complete, wait)
                if ready:
                    return
                _log.info(
                    "waiting for a restore",
                    extra={"server": server, "restored": restored, "records": total},
                )
                if self._clock.monotonic() > deadline_monotonic:
                    raise EpochFailed(
                        f"server {server} has restored {restored} of {total} changelog records; "
                        "give epochs a longer deadline (KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS)"
                    )

        self._all({name: partial(give, member) for name, member in members.items()})

    def _grant(self, target: Target) -> GrantRecord:
        self._serial += 1
        run = self.run
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

    def _append(self, records: Mapping[str, bytes | None]) -> None:
        try:
            self._control.append(records, self._config.kafka_deadline_seconds)
        except OutcomeUnknown as error:
            # Opening the control log anew could take the query back from a newer run: this run must end instead.
            raise _restart() from error

    def _all(self, calls: Mapping[str, Callable[[], None]]) -> None:
        """Raises what kept one of them from it. ServerLost: one that has just come, and is left out from now on."""
        failed = {name: of for name, of in self._fleet.each(calls).items() if isinstance(of, KeyholeError)}
        refused = {name: of for name, of in failed.items() if self._can_be_left_out(name, of)}
        for name, error in refused.items():
            self._left_out[name] = self._seen[name].target.incarnation
            _log.warning(
                "a server that has come refuses what it is given: it is left out until it is restarted",
                extra={"query": self._query, "server": name, "why": error.message},
            )
        for name in failed.keys() - refused.keys():
            raise failed[name]
        for name, error in refused.items():
            raise ServerLost(f"server {name} is left out: {error.message}")

    def _can_be_left_out(self, server: str, error: KeyholeError) -> bool:
        """The query was well without it, and no waiting makes it take what it is given."""
        refusal = isinstance(error, (ConflictError, RequestError))
        return refusal and self._begun and server not in self._owning and server in self._seen


def _restart() -> EpochFailed:
    return EpochFailed("a write to the control topic has an unknown outcome; restart the query: the new run finds out")
