"""One run of a query: takes its next generation, the fencing token of all that it writes, and holds the query until a
newer run takes it over.

The order of the steps is what makes it safe; docs/protocol.md says why. No Commit is sent before a transactional write
to the control topic has succeeded after the servers took their grants. So a driver that was superseded finds out before
it can do harm, and a server that was superseded holds a fenced grant.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from keyhole.changelog.base import Changelog
from keyhole.changelog.control_topic import ControlLog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.local_lock import turns_of
from keyhole.coordinator.new_states import DescriptorMaker, declare_new
from keyhole.coordinator.query_log import OPEN_SECONDS, QueryLog, unknown_outcome
from keyhole.coordinator.reconcile import Reconciler
from keyhole.coordinator.server_calls import Desired
from keyhole.coordinator.topics import refuse_foreign_records, with_topic
from keyhole.errors import Fenced, KeyholeError, OutcomeUnknown
from keyhole.model.epoch import Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord, OpenedRecord, QueryControl, QueryRecord, record
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.membership import Membership, Sighting
from keyhole.protocol.plan import Needs
from keyhole.protocol.start import Start
from keyhole.protocol.takeover import taken_over_by

_log = logging.getLogger(__name__)

_ON_RECORD_SECONDS, _AGAIN_SECONDS = 5.0, 0.1


class QueryRun:
    """Not thread-safe: the coordinator holds its ChangeLock around every call but `confirm`.

    Args:
        open_seconds: For what stands behind a transaction that Kafka must end.
        counts: Where it counts what becomes of it; default: nobody asks.
        if_it_waits: What is logged to come of a long wait for servers; default: that the query ends.

    Attributes:
        run: Its generation is 0 until `take`.
        descriptors: The states as they are on record, by name; none until `declare`, or `adopt`.
        complete: The record of the last complete epoch. Any thread may read it.
        fenced: What the query ends with, whatever it does, once a newer run has taken it over.
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
        counts: QueryCounts | None = None,
        if_it_waits: str = "",
    ) -> None:
        self._config = config
        self._query = query
        self._changelog = changelog
        self._clock = clock
        self._counts = counts or QueryCounts()
        self._needs: dict[str, Needs] = {}
        self.run = Run(config.application, query, 0, uuid.uuid4().hex)
        opened = OpenedRecord(self.run.run_id, socket.gethostname(), os.getpid())
        self._log = QueryLog(control, query, opened, clock, config.kafka_deadline_seconds, open_seconds)
        self._reconciler = Reconciler(config, query, changelog, self._log, fleet, clock, if_it_waits)
        self.descriptors: dict[str, StateDescriptor] = {}
        self.complete: CompleteRecord | None = None
        self.fenced: Fenced | None = None

    @property
    def membership(self) -> Membership:
        """Which servers hold what, as far as this run knows. Any thread."""
        return self._reconciler.membership

    @property
    def changes(self) -> int:
        """How many changes of the membership have begun. What was staged before the last one is lost."""
        return self._reconciler.changes

    @property
    def uncertain(self) -> bool:
        """It can't know what is on record, and can record nothing any more: only another run can."""
        return self._log.uncertain

    def known(self, *, decided: bool = False) -> QueryControl:
        """What the control topic says, without taking the query over: see QueryLog."""
        return self._log.known(decided=decided)

    def take(self, spark_query_id: str = "") -> QueryControl:
        """Takes the query over from any earlier run, which can record nothing from now on.

        Args:
            spark_query_id: What others can read of this run, beside its process; empty: none.

        Raises:
            KafkaUnreachable: Also where what earlier runs have recorded can't be read yet: then it is `uncertain`. Else
                it may be called again.
            SavepointMismatch: The application is being restored.
        """
        control = self._log.open(spark_query_id)
        generation = control.generation + 1
        self.run = Run(self._config.application, self._query, generation, self.run.run_id)
        self._log.generation(self.run)
        self._reconciler.begin(control)
        self.complete = control.complete
        _log.info("took the query", extra={"query": self._query, "generation": generation})
        return control

    def be_fenced(self, error: Fenced) -> Fenced:
        """`fenced`, from now on: the error, and who has taken the query over, as far as the control topic has it.

        A newer run fences this one before it is on record itself: so that is waited for, a few seconds.
        """
        until = self._clock.monotonic() + _ON_RECORD_SECONDS
        while True:
            try:
                who, facts = taken_over_by(self.known(), self.run)
            except KeyholeError as unread:
                who, facts = f"by whom could not be read ({unread.message})", {}
                break
            if "generation" in facts or self._clock.monotonic() >= until:
                break
            self._clock.sleep(_AGAIN_SECONDS)
        self.fenced = Fenced(
            f"query {self._query!r} was taken over from its run {self.run.generation}, which must stop: {who}. "
            f"({error.message})",
            **(error.facts | facts),
        )
        self._counts.fenced = True
        return self.fenced

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
        make, before = partial(self._made, on_new_checkpoint), self.complete
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
        if self.complete is not None and self.complete is not before:
            # With the new topics' ids: the next start must not look for the old ones' markers in them.
            records |= record("complete", self._query, self.complete)
        if records:
            self._log.append(records)

    def adopt(self, start: Start) -> None:
        """Goes on with the states as they are on record: nothing is written. For a run that makes no epochs."""
        for descriptor, standbys in start.states.items():
            self.descriptors[descriptor.state] = descriptor
            self._needs[descriptor.state] = Needs(descriptor.key_groups, standbys)

    def _declare_new(self, wanted: Sequence[StateDescriptor], make: DescriptorMaker) -> dict[str, StateDescriptor]:
        def known() -> dict[str, StateDescriptor]:
            # It also fails where a newer run of the query declares the same.
            return self._log.recorded().states

        if not wanted:
            return {}
        config = self._config
        turns = turns_of(config.bootstrap_servers, config.application)
        try:
            deadline = config.kafka_deadline_seconds
            return declare_new(self._changelog, turns, wanted, known, make, self._clock, deadline)
        except OutcomeUnknown as error:
            raise unknown_outcome() from error

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
            self._log.append(records)

    def record_complete(self, complete: CompleteRecord) -> None:
        """Raises Fenced where a newer run exists."""
        self.complete = self._log.complete(complete)

    def repeat_complete(self) -> None:
        """Says to those who follow the control topic that the last complete epoch is still the last one."""
        if self.complete is not None:
            self.record_complete(self.complete)

    def confirm(self) -> list[str]:
        """Renews the leases, and tells what the last epochs took. Returns the members that did not confirm it, as
        Reconciler.confirm. Any thread."""
        membership, complete = self.membership, self.complete
        return self._reconciler.confirm(self.run, membership, complete, self._counts.recent.last)

    def distrust(self, server: str) -> None:
        """The server's grant is no longer any good: the next `converge` fences it and gives it another."""
        self._counts.distrusted += 1
        self._reconciler.distrust(server)

    def look(self) -> Mapping[str, Sighting]:
        """The servers that answer now, by id. See ServerCalls."""
        return self._reconciler.look()

    def converge(self, deadline_monotonic: float, first: Mapping[str, Sighting] | None = None) -> None:
        """Returns when every key group of the states has a live owner that is ready. See Reconciler."""
        desired = Desired(self.run, self.descriptors, self._needs, self.complete)
        self._reconciler.converge(desired, deadline_monotonic, first)
