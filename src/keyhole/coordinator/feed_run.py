"""A run of a query that has no epochs: its states are fed by updates, and it says which servers own their key groups.

    refuse what can't be        nobody is disturbed by a start that is refused
    take the query over         an earlier run can record nothing from now on
    updates topics, descriptors each made, or as it is on record
    rules                       to every partition, before any grant
    grants, assignments         as for a query with epochs, and a heartbeat from then on

Each step can be taken again: a run that dies after any of them is followed by one that does the same. A newer run ends
this one. keyhole.coordinator.coordinator is the same for micro-batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

import msgspec

from keyhole.changelog.base import Changelog, UpdatesTopics
from keyhole.changelog.settings import check_apart, topic_name, updates_topic_name
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Addresses, Fleet
from keyhole.coordinator.heartbeat import HEARTBEAT_SECONDS
from keyhole.coordinator.held_query import HeldQuery
from keyhole.errors import ChangelogRecreated, Fenced, KafkaUnreachable, StateConflict
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord, OpenedRecord, QueryControl
from keyhole.protocol.fed_sources import StateOnRecord
from keyhole.protocol.start import Start, decide_feed, recorded_sources
from keyhole.protocol.updates import FeedRules, RulesRecord, encode

_SILENT_SECONDS = 3.0
_LOOK_SECONDS = 0.25


class FeedRun(HeldQuery):
    """See the module's text. Made once per run; `start`, then the heartbeat has a thread of its own.

    Args: As HeldQuery takes them.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        changelog: Changelog,
        clock: Clock,
        *,
        addresses: Addresses | None = None,
        fleet: Fleet | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        counts: QueryCounts | None = None,
    ) -> None:
        super().__init__(
            config,
            query,
            changelog,
            clock,
            on_new_checkpoint="refuse",
            addresses=addresses,
            fleet=fleet,
            heartbeat_seconds=heartbeat_seconds,
            counts=counts,
        )
        self._changelog = changelog

    def start(
        self,
        states: Mapping[StateDescriptor, int],
        *,
        sources: Mapping[str, str] = {},
        take_over: bool = True,
        admit: Callable[[Mapping[str, StateOnRecord]], None] = lambda _: None,
    ) -> None:
        """Takes the query over, and returns once every key group has an owner that applies its updates.

        Args:
            states: As they are declared, with neither a topic's id; and how many standbys each is to have.
            sources: By which topics feed them, each with the name of its topic. They are on record once this returns.
            take_over: Also from a run that goes on. Else one is listened for, for three of its heartbeats.
            admit: Is given those of them that are on record, by name, before anything is made or taken over. What it
                raises refuses the start.

        Raises:
            StateConflict: Another run goes on, which must not be taken over.
            StateChanged, StateConflict, CheckpointMismatch, SavepointMismatch, TopicMismatch: A state can't be fed so,
                or is another query's, or one of the topics feeds it under another name; or the query runs by epochs.
            ChangelogRecreated: The updates topic of a state is gone, was made anew, or holds records of an earlier one.
                An earlier run goes on, after this and those above.
            InvalidConfiguration: Kafka has no place for the name of a topic, or doesn't let this process make or write
                it. An earlier run goes on then, too.
            Fenced: A newer run has taken the query over meanwhile.
            EpochFailed, KafkaUnreachable: Not within `epoch_deadline_seconds`. A new run may start.
        """

        def decide(control: QueryControl) -> Start:
            return decide_feed(self._query, control, states, sources)

        self._admission.check(decide)
        known = self._run.known()
        found, fed = decide(known).states, recorded_sources(known)
        self._check_updates(found)
        admit({of.state: StateOnRecord(of, fed.get(of.state, ())) for of in found if of.updates_topic_id})
        if not take_over:
            self._refuse_beside_another()
        with self._changes.held():
            control = self._run.take()
            # Once more: until now others could record.
            start = decide(control)
            try:
                self._begin(control, start)
            except Fenced as error:
                raise self._run.be_fenced(error) from error
        self._heartbeat.start()

    def _check_updates(self, states: Collection[StateDescriptor]) -> None:
        """Looks at the updates topics that there are, and whether Kafka would make the others. Nothing is made."""
        application = self._config.application
        check_apart(name(application, of.state) for of in states for name in (topic_name, updates_topic_name))
        with contextlib.closing(self._changelog.updates_topics()) as topics:
            for of in states:
                if of.updates_topic_id:
                    self._ensured(topics, of)
                elif self._is_there(topics, of):
                    self._ensured(topics, of)
                    self._check_empty(topics, of)
                else:
                    topics.check_new(of.state, of.key_groups, self._config.kafka_deadline_seconds)

    def _refuse_beside_another(self) -> None:
        """Passes once nothing was heard of the run before for a while. No clocks of two machines are compared."""
        before = self._run.known()
        if before.complete is None:
            return  # no run has come so far
        until = self._clock.monotonic() + _SILENT_SECONDS
        while self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_SECONDS)
            now = self._run.known()
            if (now.run_id, now.opened, now.complete) != (before.run_id, before.opened, before.complete):
                opened = now.opened
                if opened is None or opened.run_id != now.run_id:
                    opened = OpenedRecord(now.run_id)
                raise StateConflict(
                    f"query {self._query!r} is run by another process, which goes on: run {now.generation} "
                    f"({opened.who}). Stop that one first, or take over from it (--take-over). One that has died is "
                    f"followed once nothing was heard of it for {_SILENT_SECONDS:g} s",
                    query=self._query,
                    generation=now.generation,
                )

    def _begin(self, control: QueryControl, start: Start) -> None:
        deadline = self._config.kafka_deadline_seconds
        with contextlib.closing(self._changelog.updates_topics()) as topics:
            wanted = {self._with_updates(topics, of, control): count for of, count in start.states.items()}
            self._run.declare(control, wanted, "refuse", start.query)
            self._run.settle(start.over)
            # Before any grant: an owner applies nothing ahead of the first rules. Those of an earlier run, which wakes
            # late, are of an older generation and change nothing.
            for name, of in self._run.descriptors.items():
                rules = RulesRecord(self._run.run.generation, FeedRules.of(of))
                topics.write(name, of.key_groups, encode(rules), deadline)
        # Said again with each heartbeat: who can't say it may have been replaced, and must confirm nobody.
        stamp = EpochStamp(0, self._run.run.generation, self._clock.now_ms(), 0)
        self._run.record_complete(CompleteRecord.of(stamp, 0, {}, ""))
        self._run.converge(self._clock.monotonic() + self._config.epoch_deadline_seconds)
        self._counts.note_membership(self._run.run.generation, self._run.membership)

    def _ensured(self, topics: UpdatesTopics, of: StateDescriptor) -> str:
        return topics.ensure(of.state, of.key_groups, of.updates_topic_id, self._config.kafka_deadline_seconds)

    def _with_updates(self, topics: UpdatesTopics, of: StateDescriptor, control: QueryControl) -> StateDescriptor:
        found = self._ensured(topics, of)
        known = control.states.get(of.state)
        if known is None or not known.updates_topic_id:
            self._check_empty(topics, of)
        return msgspec.structs.replace(of, updates_topic_id=found)

    def _is_there(self, topics: UpdatesTopics, of: StateDescriptor) -> bool:
        """Whether a new state has an updates topic, which somebody else has made."""
        try:
            topics.extents({of.state: [0]}, self._config.kafka_deadline_seconds)
        except ChangelogRecreated:
            return False
        return True

    def _check_empty(self, topics: UpdatesTopics, of: StateDescriptor) -> None:
        extents = topics.extents({of.state: range(of.key_groups)}, self._config.kafka_deadline_seconds)
        if any(extent.end for extent in extents.values()):
            raise ChangelogRecreated(
                f"the updates topic of state {of.state!r} holds records, and the control topic knows no such "
                "state: its own records were deleted. Delete the topic, or give the state another name",
                state=of.state,
            )

    @property
    def fenced(self) -> Fenced | None:
        """What this run ends with, once a newer one has taken the query over. Any thread, as the following."""
        return self._run.fenced

    @property
    def lost(self) -> KafkaUnreachable | None:
        """What this run ends with, once Kafka was away in the middle of a record of it: only a new run can find out
        what is on record. Servers go on answering, unconfirmed, and nobody replaces one that is lost.
        """
        if not self._run.uncertain:
            return None
        return KafkaUnreachable(
            f"Kafka was away for so long that the run of query {self._query!r} can't know what is on record, and holds "
            "the query no more. Start it again: it goes on where this one was, and no row is lost or counts twice",
            query=self._query,
        )

    def fenced_by(self) -> Fenced | None:
        """`fenced`, with who has taken the query over as far as that is on record by now. Blocks; after `start`.

        A newer run fences this one before it is on record itself: so who asks at once may hear that nobody is. One that
        is on record has its `generation` among the facts. Raises nothing.
        """
        with self._changes.held():
            fenced = self._run.fenced
            if fenced is None or "generation" in fenced.facts or not isinstance(fenced.__cause__, Fenced):
                return fenced
            cause = fenced.__cause__
            error = self._run.be_fenced(cause)
            error.__cause__ = cause
            return error

    @property
    def generation(self) -> int:
        """Of this run; 0 before it has taken the query."""
        return self._run.run.generation

    @property
    def descriptors(self) -> Mapping[str, StateDescriptor]:
        """The states as they are on record, by name."""
        return self._run.descriptors
