"""Makes an application out of a savepoint: topics, rows, markers, Spark's checkpoint, and at last its control records.

Until these are written the application can't be started; so a restore that is broken off is simply begun again with the
same options, and writes all rows once more over those that are there.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from keyhole.backoff import Backoff
from keyhole.changelog.base import Changelog, ChangelogWriter, Marker, Partition, PartitionChanges, TopicRight
from keyhole.changelog.control_topic import ControlLog
from keyhole.changelog.settings import CONTROL, CONTROL_TRANSACTION_MOST_SECONDS, topic_name
from keyhole.clock import Clock
from keyhole.coordinator.new_states import DECLARING
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import layout_of
from keyhole.encoding.storage_key import group_of
from keyhole.errors import (
    ChangelogRecreated,
    ConflictError,
    Fenced,
    KafkaUnreachable,
    KeyholeError,
    OutcomeUnknown,
    SavepointMismatch,
)
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import record
from keyhole.savepoint.folder import Folder, check_file
from keyhole.savepoint.laid_checkpoint import check_checkpoint_place, lay_checkpoint
from keyhole.savepoint.listing import load
from keyhole.savepoint.manifest import Savepoint
from keyhole.savepoint.restore_plan import (
    Plan,
    PlannedQuery,
    PlannedState,
    RestoreOptions,
    begin_records,
    check_target,
    final_records,
    plan_restore,
)
from keyhole.savepoint.row_files import SavedRows, read_rows

_log = logging.getLogger(__name__)

_READER = "savepoint"  # of the control topic; it never opens it, so that it fences nobody
# Stands for the query where the rest of a restore is recorded; no query can have this name.
_RESTORING = "*restore"

# Longer than another's claim takes, most of which is the making of topics: then the next attempt hears of it.
_ATTEMPTS, _FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 4, 1.0, 8.0


def plan_of(source: Folder, options: RestoreOptions) -> tuple[Savepoint, Plan]:
    """What a restore would do; every file's checksum has been compared.

    Raises:
        SavepointDamaged: A file is missing, or not as it was written.
        SavepointMismatch: There is no savepoint, or the options don't fit it.
    """
    savepoint = load(source)
    plan = plan_restore(savepoint, options)
    for saved in savepoint.files:
        check_file(source, saved)
    return savepoint, plan


def restore(source: Folder, plan: Plan, changelog: Changelog, clock: Clock, deadline_seconds: float = 30.0) -> bool:
    """Carries the plan out. Returns whether it took up one that was broken off.

    Args:
        changelog: Of the plan's application.
        deadline_seconds: How long one call to Kafka may take.

    Raises:
        SavepointMismatch, TopicMismatch: The target is in use, or can't be restored into. Nothing was changed, unless
            that came about after this has begun.
        InvalidConfiguration: Kafka doesn't let it write what it must. Nothing was changed.
        Fenced: Another process has begun the same restore meanwhile, and goes on with it; or jobs and restores are
            begun all the time. May be called again: then it finds whose the target is.
        KafkaUnreachable, OutcomeUnknown: May be called again, and goes on.
    """
    backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
    for left in reversed(range(_ATTEMPTS)):
        attempt = _Restore(source, plan, changelog, clock, deadline_seconds)
        try:
            return attempt.run()
        except Fenced as error:
            if attempt.claimed or not left:
                raise _overtaken(plan, error, claimed=attempt.claimed) from error
            # Two that begin at the same moment may have ended each other: the next look finds who has the application.
            _log.info("a restore is begun again", extra={"application": plan.application, "why": error.message})
            clock.sleep(backoff.next())
        except (KafkaUnreachable, OutcomeUnknown) as error:
            if attempt.claimed or isinstance(error, OutcomeUnknown):
                raise _to_be_continued(plan, error) from error
            raise
    raise AssertionError("the last attempt returns or raises")


def _overtaken(plan: Plan, error: Fenced, *, claimed: bool) -> Fenced:
    if claimed:
        # The ids that are taken from then on are those of this very restore.
        return Fenced(
            f"another process has begun to restore application {plan.application!r} with the same options, and goes on "
            "with it in place of this one: nothing is lost. Wait for the other one's end; where that was killed, run "
            "this again with the same options",
            **error.facts,
        )
    return Fenced(
        f"application {plan.application!r} is not restored by this: a query of it was started at the same moment, or "
        "another restore into it was begun. Run this again with the same options: it restores the application, or says "
        "who has it",
        **error.facts,
    )


def _to_be_continued(plan: Plan, error: KafkaUnreachable | OutcomeUnknown) -> KeyholeError:
    return type(error)(
        f"application {plan.application!r} may be restored in part, and then can't be started: {error.message} When "
        "Kafka answers, run this again with the same options: it goes on, or says that nothing is left to do",
        **error.facts,
    )


class _Restore:
    def __init__(self, source: Folder, plan: Plan, changelog: Changelog, clock: Clock, deadline_seconds: float) -> None:
        self._source = source
        self._plan = plan
        self._changelog = changelog
        self._clock = clock
        self._deadline = deadline_seconds
        self.claimed = False

    def run(self) -> bool:
        begun = self._looked()
        with contextlib.ExitStack() as stack:
            controls = [
                stack.enter_context(contextlib.closing(self._changelog.control(query.query)))
                for query in self._plan.queries
            ]
            for control in controls:
                control.open(self._deadline)
            # Under an id of its own: a start of one of the queries is refused, and fences nobody but what they had.
            log = stack.enter_context(contextlib.closing(self._changelog.control(_RESTORING)))
            if begun:
                self._end_what_began_it()
            resumed, topic_ids = self._claim(controls[0], log)
            self.claimed = True
            markers = self._write_states(log)
            for query in self._with_checkpoints():
                lay_checkpoint(self._source, self._plan.states, query)
            # Whoever was suspended since then may find another application of this name.
            self._still_begun(self._recorded(log))
            now_ms = self._clock.now_ms()
            log.append(final_records(self._plan, topic_ids, markers, now_ms), self._deadline)
        return resumed

    def _looked(self) -> bool:
        """Whether this very restore was begun. Opens and makes nothing: that would fence a job that runs there.

        Raises:
            ConflictError: All that refuses a restore, by what is on record now. `_claim` looks once more.
            InvalidConfiguration: Kafka doesn't let it write the topics that are there.
        """
        reader = self._changelog.control(_READER)
        try:
            begun = self._look(lambda: reader.read(self._deadline))
        except ConflictError:
            # Behind a transaction that is open, records may be missing.
            begun = self._look(lambda: reader.read_decided(self._deadline + CONTROL_TRANSACTION_MOST_SECONDS))
        for query in self._with_checkpoints():
            check_checkpoint_place(self._plan.states, query)
        return begun

    def _with_checkpoints(self) -> list[PlannedQuery]:
        return [query for query in self._plan.queries if query.feed is None]

    def _look(self, read: Callable[[], Mapping[str, bytes]]) -> bool:
        try:
            records = read()
        except ChangelogRecreated:
            records = {}  # the topic doesn't exist
        begun = check_target(self._plan, records)
        admin = self._changelog.admin()
        there = [state.descriptor for state in self._plan.states if admin.check(state.descriptor, self._deadline)]
        written = [topic_name(self._plan.application, name) for name in (CONTROL, *(of.state for of in there))]
        admin.check_rights(dict.fromkeys(written, TopicRight.WRITE), self._deadline)
        self._check_unused(there, resumed=begun)
        return begun

    def _recorded(self, log: ControlLog) -> Mapping[str, bytes]:
        """All that was recorded before, by whomever: once a record of ours can be read, so can that."""
        self._confirm(log)
        return log.read(self._deadline + CONTROL_TRANSACTION_MOST_SECONDS)

    def _still_begun(self, records: Mapping[str, bytes]) -> None:
        if not check_target(self._plan, records):
            raise SavepointMismatch(
                f"the topics of application {self._plan.application!r} were deleted while it was being restored: "
                "delete them once more, as there are rows of this restore in them, and begin anew",
                application=self._plan.application,
            )

    def _end_what_began_it(self) -> None:
        """It may have ended in a transaction on the control topic: nothing behind that can be read until Kafka, or
        this, ends it."""
        with contextlib.closing(self._changelog.control(_RESTORING)) as log:
            log.open(self._deadline)

    def _claim(self, control: ControlLog, log: ControlLog) -> tuple[bool, dict[str, str]]:
        """Records that the application is being restored, from when on no query and no other restore has it.

        As new states are declared (docs/protocol.md, "Whose a state is"): nobody can have declared any, or begun
        another restore, between the look and the record.

        Args:
            control: Of the plan's first query, opened.
            log: Is opened, which ends what has begun this very restore before, and goes on with it.

        Returns:
            Whether this very restore was begun before; and the topics' ids by state.
        """
        with contextlib.closing(self._changelog.control(DECLARING)) as declaring:
            declaring.open(self._deadline)
            resumed = check_target(self._plan, self._recorded(control))
            topic_ids = self._make_topics(resumed)
            # Only once: what has begun this very restore before may come to its end at this moment.
            if not resumed:
                declaring.append(begin_records(self._plan), self._deadline)
        # Not before: only another process with this very restore may be ended by it.
        log.open(self._deadline)
        return resumed, topic_ids

    def _make_topics(self, resumed: bool) -> dict[str, str]:
        """The topics' ids by state."""
        admin, states = self._changelog.admin(), [state.descriptor for state in self._plan.states]
        ids = {of.state: admin.ensure(of, self._deadline) for of in states}
        self._check_unused(states, resumed=resumed)
        return ids

    def _check_unused(self, states: Sequence[StateDescriptor], *, resumed: bool) -> None:
        """Raises SavepointMismatch: their topics, which are there, hold records, and not of this restore."""
        if resumed:
            return
        with contextlib.closing(self._changelog.reader()) as reader:
            ends = reader.ends({of.state: range(of.key_groups) for of in states}, self._deadline)
        used = sorted({part.state for part, end in ends.items() if end > 0})
        if used:
            raise SavepointMismatch(
                f"topic keyhole.{self._plan.application}.{used[0]} holds records of something else: restore under "
                "another name (--application, --rename), or delete the topic",
                state=used[0],
            )

    def _write_states(self, log: ControlLog) -> dict[str, list[int]]:
        """The offset of each key group's last marker, by state.

        Raises:
            Fenced: Another process has taken the log, and with it the restore.
            SavepointMismatch: It has even come to its end: what is there may have gone on since.
        """
        while True:
            # With the log in hand: nobody can end the restore from here on without taking it.
            self._still_begun(self._recorded(log))
            # One id for all restores into the application: nothing of an earlier one comes after this.
            with contextlib.closing(self._changelog.writer(f"keyhole.{self._plan.application}.restore")) as writer:
                writer.open(self._deadline)
                self._confirm(log)
                try:
                    return {state.descriptor.state: self._write_state(writer, state) for state in self._plan.states}
                except Fenced as error:
                    # Whoever was between its two looks at the log has ended this, and itself with the second one.
                    _log.info("the rows are written anew", extra={"why": error.message})

    def _confirm(self, log: ControlLog) -> None:
        """Raises Fenced where another process has taken the log."""
        log.append(record("opened", self._plan.queries[0].query, None), self._deadline)

    def _write_state(self, writer: ChangelogWriter, state: PlannedState) -> list[int]:
        name, groups = state.descriptor.state, state.descriptor.key_groups
        marker = _marker(self._plan.query_of(state), state.descriptor)
        for changes in self._changes(state):
            writer.commit([PartitionChanges(part, rows, marker) for part, rows in changes.items()], self._deadline)
        # Every key group stands for the complete epoch, also those without rows; and after all of its rows.
        last = [PartitionChanges(Partition(name, group), (), marker) for group in range(groups)]
        offsets = writer.commit(last, self._deadline)
        _log.info("restored a state", extra={"state": name, "rows": state.saved.rows})
        return [offsets[Partition(name, group)] for group in range(groups)]

    def _changes(self, state: PlannedState) -> Iterator[dict[Partition, SavedRows]]:
        old, new = state.saved.descriptor, state.descriptor
        before, after = StateCodec(old), StateCodec(new)
        for rows in read_rows(self._source, state.saved.files):
            changes: dict[Partition, SavedRows] = defaultdict(list)
            for key, row in rows:
                # The key group is a part of the storage key, and is all of it that depends on their number.
                moved = key if old.key_groups == new.key_groups else _moved(key, before, after)
                changes[Partition(new.state, group_of(moved))].append((moved, row))
            yield changes


def _moved(storage_key: bytes, before: StateCodec, after: StateCodec) -> bytes:
    """The storage key where there is another number of key groups. What follows the key stays as it is."""
    return after.prefix(before.key(storage_key)) + storage_key[before.prefix_length(storage_key) :]


def _marker(query: PlannedQuery, of: StateDescriptor) -> Marker:
    return Marker(
        stamp=query.stamp,
        # Of no epoch's rows: the epoch is not run again, as the checkpoint says that it is done.
        checksum=0,
        offsets_hash=query.saved.complete.offsets_hash,
        layout=layout_of(of),
        feed=query.feed,
    )
