"""One run of a query: takes its generation, keeps every key group owned by a live server, and fences all others.

The order of the steps is what makes it safe; docs/architecture.md tells why. In short: a grant is on record before a
server may write under it, whoever is on record is fenced before anyone takes over, and no Commit is sent before a
transactional write to the control topic has succeeded after the server took its grant. So a driver that was superseded
finds out before it can do harm, and a server that was superseded holds a fenced grant.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from keyhole.changelog.base import Changelog, ControlLog
from keyhole.config import JobConfig
from keyhole.coordinator.control import (
    AssignmentRecord,
    CompleteRecord,
    GenerationRecord,
    GrantRecord,
    QueryControl,
    QueryRecord,
    read_control,
    record,
)
from keyhole.coordinator.decisions import (
    Member,
    Membership,
    OnNewCheckpoint,
    Recovery,
    check_descriptor,
    groups_of,
    plan_recovery,
    transactional_id,
)
from keyhole.coordinator.receipts import Target
from keyhole.coordinator.servers import Fleet
from keyhole.errors import (
    ChangelogRecreated,
    EpochFailed,
    KeyholeError,
    NoServer,
    OutcomeUnknown,
    StageLost,
    UnavailableError,
)
from keyhole.types import Run, StateDescriptor

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25


class QueryRun:
    """Not thread-safe: the coordinator holds its lock around every call."""

    def __init__(self, config: JobConfig, query: str, changelog: Changelog, control: ControlLog, fleet: Fleet) -> None:
        self._config = config
        self._query = query
        self._changelog = changelog
        self._control = control
        self._fleet = fleet
        self._serial = 0
        self._grants: tuple[GrantRecord, ...] = ()
        self._broken: frozenset[str] = frozenset()
        self._begun = False
        self.run = Run(config.application, query, 0, uuid.uuid4().hex)
        self.descriptors: dict[str, StateDescriptor] = {}
        self.complete: CompleteRecord | None = None
        self.membership = Membership({}, AssignmentRecord(0, (), {}))

    def take(self) -> QueryControl:
        """Takes the query over from any earlier run, which can record nothing from now on."""
        deadline = self._config.kafka_deadline_seconds
        self._control.open(deadline)
        control = read_control(self._control.read(deadline), self._query)
        generation = control.generation + 1
        self.run = Run(self._config.application, self._query, generation, self.run.run_id)
        self._append(record("generation", self._query, GenerationRecord(generation, self.run.run_id)))
        self._grants = control.grants
        self.complete = control.complete
        if control.assignment is not None:
            self.membership = Membership({}, control.assignment)
        _log.info("took the query", extra={"query": self._query, "generation": generation})
        return control

    def declare(
        self, control: QueryControl, wanted: Sequence[StateDescriptor], on_new_checkpoint: OnNewCheckpoint
    ) -> None:
        """Checks the job's states against the stored ones, and makes the changelogs of new ones.

        Raises:
            ConflictError: See decisions.check_descriptor, ChangelogAdmin.ensure.
        """
        admin, deadline = self._changelog.admin(), self._config.kafka_deadline_seconds
        records: dict[str, bytes | None] = {}
        for descriptor in wanted:
            stored = control.states.get(descriptor.state)
            check_descriptor(stored, descriptor)
            known = _with_topic(descriptor, stored.topic_id if stored else "")
            try:
                topic_id = admin.ensure(known, deadline)
            except ChangelogRecreated:
                if on_new_checkpoint == "refuse":
                    raise
                topic_id = admin.ensure(descriptor, deadline)
            if stored is None:
                self._refuse_foreign_records(descriptor)
            elif stored.topic_id != topic_id and self.complete is not None:
                # The new topic has none of the old one's markers.
                markers = {name: of for name, of in self.complete.markers.items() if name != descriptor.state}
                self.complete = msgspec.structs.replace(self.complete, markers=markers)
            self.descriptors[descriptor.state] = _with_topic(descriptor, topic_id)
            if stored != self.descriptors[descriptor.state]:
                records |= record("state", descriptor.state, self.descriptors[descriptor.state])
        if records:
            self._append(records)

    def _refuse_foreign_records(self, descriptor: StateDescriptor) -> None:
        reader = self._changelog.reader()
        try:
            groups = list(range(descriptor.key_groups))
            ends = reader.ends({descriptor.state: groups}, self._config.kafka_deadline_seconds)
        finally:
            reader.close()
        if any(ends.values()):
            raise ChangelogRecreated(
                f"topic {descriptor.topic} holds records, but the control topic knows no state {descriptor.state!r}: "
                "they belong to another application of this name, or the control topic was deleted. Delete the "
                "changelog topic, or choose another application or state name",
                topic=descriptor.topic,
            )

    def record_query(self, query: QueryRecord) -> None:
        self._append(record("query", self._query, query))

    def record_complete(self, complete: CompleteRecord) -> None:
        """Raises Fenced where a newer run exists."""
        self._append(record("complete", self._query, complete))
        self.complete = complete

    def repeat_complete(self) -> None:
        """Writes the last complete epoch again, for those who follow the control topic."""
        if self.complete is not None:
            self.record_complete(self.complete)

    def distrust(self, server: str) -> None:
        """The server's grant is no longer any good: the next `converge` fences it and gives it another."""
        self._broken |= {server}

    def converge(self, deadline_monotonic: float) -> None:
        """Returns when every key group has a live owner that is ready, under grants of this run.

        Raises:
            Fenced: A newer run has taken over.
            NoServer, EpochFailed: Not before the deadline; the message names what was waited for.
            ConflictError: A server can't hold its key groups and waiting won't help (its disk is full).
        """
        waiting_for: KeyholeError = NoServer(f"no state server answers at {', '.join(self._config.servers)}")
        first_seen: float | None = None
        while True:
            live = self._fleet.observe()
            now = time.monotonic()
            first_seen = first_seen or (now if live else None)
            complete = len(live) == len(self._config.servers)
            patience = not self._begun and now - (first_seen or now) < self._config.server_wait_seconds
            if live and (complete or not patience):
                try:
                    if self._converge_once(live, deadline_monotonic):
                        return
                    continue
                except (UnavailableError, StageLost, OutcomeUnknown) as error:
                    waiting_for = error
            elif not live:
                waiting_for = NoServer(f"no state server answers at {', '.join(self._config.servers)}")
            if time.monotonic() > deadline_monotonic:
                raise EpochFailed(f"gave up waiting for the state servers: {waiting_for.message}") from waiting_for
            time.sleep(_RETRY_SECONDS)

    def _converge_once(self, live: Mapping[str, Target], deadline_monotonic: float) -> bool:
        sizes = {name: descriptor.key_groups for name, descriptor in self.descriptors.items()}
        recovery = plan_recovery(self.membership, self._grants, live, self._broken, sizes)
        if recovery is None:
            self._begun = True
            return True
        self._execute(recovery, live, deadline_monotonic)
        return False  # observe once more: a server may have gone meanwhile

    def _execute(self, recovery: Recovery, live: Mapping[str, Target], deadline_monotonic: float) -> None:
        timeout = self._config.kafka_deadline_seconds
        fenced = set(recovery.fence)
        # Should anything fail from here on, these may be fenced: also the grant of a server that comes back unchanged.
        self._broken |= {name for name, member in self.membership.members.items() if member.grant in fenced}
        self._fence(recovery.fence)
        opened = {target.server: self._grant(target) for target in recovery.open}
        forgotten = {f"grant/{self._query}/{grant}": None for grant in recovery.fence}
        self._append(
            forgotten
            | {
                key: value
                for grant in opened.values()
                for key, value in record("grant", f"{self._query}/{grant.grant}", grant).items()
            }
        )
        self._grants = (*(g for g in self._grants if g.grant not in fenced), *opened.values())
        kept = {n: m for n, m in self.membership.members.items() if m.grant not in fenced}
        # A failure before the assignment is on record begins again from here: only the kept ones count as members.
        self.membership = Membership(kept, self.membership.assignment, settled=False)
        self._broken = frozenset()
        self._all(
            {
                name: partial(self._fleet.link(live[name]).open_run, self.run, live[name], grant.grant, timeout)
                for name, grant in opened.items()
            }
        )
        self._release(recovery.release, timeout)
        self._check_changelogs()
        self._append(record("assignment", self._query, recovery.assignment))
        members = kept | {name: Member(live[name], grant.grant) for name, grant in opened.items()}
        # A failure from here on begins again with this assignment: its version is never used for another one, because a
        # server takes a version that it has seen for done.
        self.membership = Membership(members, recovery.assignment, settled=False)
        self._assign_all(members, recovery.assignment, deadline_monotonic)
        self.membership = Membership(members, recovery.assignment)

    def _check_changelogs(self) -> None:
        """Compares the changelogs' ends with the last complete epoch's markers.

        Everyone who could write has been fenced, so the ends are final. A broker that died at a bad moment can lose the
        end of a committed transaction (docs/adr); a restore would then quietly give an older state.

        Raises:
            ChangelogRecreated: Committed records are missing.
        """
        markers = self.complete.markers if self.complete is not None else {}
        asked = {name: range(len(offsets)) for name, offsets in markers.items() if name in self.descriptors}
        if not asked:
            return
        reader = self._changelog.reader()
        try:
            ends = reader.ends(asked, self._config.kafka_deadline_seconds)
        finally:
            reader.close()
        lost = [part for part, end in ends.items() if end <= markers[part.state][part.key_group]]
        if lost:
            names = ", ".join(f"{part.state} key group {part.key_group}" for part in lost[:10])
            raise ChangelogRecreated(
                f"the changelog lacks records that were complete ({names}): the topic was truncated, or a broker lost "
                "them. Restore the topic or a savepoint, or delete the changelog topics and start with "
                'on_new_checkpoint="reset"',
                key_groups=len(lost),
            )

    def _release(self, release: Mapping[str, Mapping[str, Sequence[int]]], timeout: float) -> None:
        def give_up(name: str) -> None:
            link = self._fleet.link(self.membership.members[name].target)
            for state, groups in release[name].items():
                link.release(self.run, state, groups, timeout)

        self._all({name: partial(give_up, name) for name in release})

    def _assign_all(
        self, members: Mapping[str, Member], assignment: AssignmentRecord, deadline_monotonic: float
    ) -> None:
        complete = (self.complete.epoch, self.complete.commit_time_ms) if self.complete else (0, 0)

        def give(member: Member) -> None:
            states = [(d, groups_of(assignment, member.target.server, s)) for s, d in self.descriptors.items()]
            link = self._fleet.link(member.target)
            while True:
                ready, restored, total = link.assign(self.run, assignment.version, states, complete)
                if ready:
                    return
                _log.info(
                    "waiting for a restore",
                    extra={"server": member.target.server, "restored": restored, "records": total},
                )
                if time.monotonic() > deadline_monotonic:
                    raise EpochFailed(
                        f"server {member.target.server} has restored {restored} of {total} changelog records; "
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
            raise EpochFailed(
                "a write to the control topic has an unknown outcome; restart the query: the new run finds out"
            ) from error

    def _all(self, calls: Mapping[str, Callable[[], None]]) -> None:
        for result in self._fleet.each(calls).values():
            if isinstance(result, KeyholeError):
                raise result


def _with_topic(descriptor: StateDescriptor, topic_id: str) -> StateDescriptor:
    return msgspec.structs.replace(descriptor, topic_id=topic_id)
