"""Takes a savepoint: of the changelogs up to the complete epoch's markers, while the job runs on.

The markers of the last complete epoch say where to read to. What a later epoch replaces is still there as long as the
records that replace it are younger than the topics' min.compaction.lag.ms. A savepoint that takes longer is begun
again, and refused where it finds older ones.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from keyhole.changelog.base import Changelog, ChangelogReader, Partition
from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, SavepointMismatch
from keyhole.model.epoch import START
from keyhole.model.state import StateDescriptor
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.manifest import (
    CHECKPOINTS,
    INCOMPLETE,
    MANIFEST,
    STATES,
    SavedCheckpoint,
    SavedQuery,
    SavedState,
    Savepoint,
    begun,
    encode_manifest,
)
from keyhole.savepoint.row_files import write_rows
from keyhole.savepoint.spark_checkpoint import copy_checkpoint
from keyhole.savepoint.subject import Subject, SubjectQuery, check_checkpoints, subject_of, uneven
from keyhole.stores.base import StoreEngine
from keyhole.stores.replayed import Replayed, scratch_stores

_log = logging.getLogger(__name__)

_READER = "savepoint"  # of the control topic; it never opens it, so that it fences nobody
_UNEVEN_SECONDS = 0.2


@dataclass(frozen=True)
class CreateSettings:
    """How patient to be.

    Attributes:
        kafka_deadline_seconds: How long one call to Kafka may take, or a read go without progress.
        compaction_lag_ms: The least min.compaction.lag.ms of the changelog topics.
        margin_ms: How far the clocks of this machine, the driver and the brokers may be apart.
        attempts: How often to begin again.
        commit_wait_seconds: See copy_checkpoint.
    """

    kafka_deadline_seconds: float = 30.0
    compaction_lag_ms: int = MIN_COMPACTION_LAG_MS
    margin_ms: int = 60_000
    attempts: int = 3
    commit_wait_seconds: float = 10.0

    @property
    def limit_ms(self) -> int:
        """The greatest age of records that replace others at which what they replace is certainly there."""
        return self.compaction_lag_ms - self.margin_ms


class _TooLate(Exception):
    """Compaction may have eaten what was to be read."""


def create(
    application: str,
    changelog: Changelog,
    target: Folder,
    checkpoints: Mapping[str, Folder],
    clock: Clock,
    settings: CreateSettings | None = None,
) -> Savepoint:
    """Writes a savepoint into the folder, which must be new, empty, or left by one that was broken off.

    Args:
        checkpoints: By query, its Spark checkpoint; a query with Spark state needs one.

    Raises:
        SavepointMismatch: What there is can't be saved, or not there; the message says why.
        UnknownApplication: Nothing is there to save.
        KafkaUnreachable: No manifest was written.
    """
    settings = settings or CreateSettings()
    _check_empty(target)
    why = ""
    for _ in range(settings.attempts):
        # First: by it one sees what is left of this one, or of another one, wherever this ends.
        target.write_whole(INCOMPLETE, msgspec.json.encode({"application": application, "began_ms": clock.now_ms()}))
        target.clear(but=INCOMPLETE)
        try:
            savepoint = _SavepointTry(application, changelog, target, checkpoints, clock, settings).run()
        except _TooLate as late:
            why = str(late)
            _log.warning("a savepoint is begun again", extra={"application": application, "why": why})
            continue
        target.write_whole(MANIFEST, encode_manifest(savepoint))
        target.remove(INCOMPLETE)
        return savepoint
    raise SavepointMismatch(
        f"no savepoint of {application!r} could be taken: {why}, and the changelog may be compacted after "
        f"{settings.compaction_lag_ms / 1000:g} s (min.compaction.lag.ms). Raise that setting of the changelog topics "
        "and tell it with --compaction-lag, or use a faster disk",
        application=application,
    )


def _check_empty(target: Folder) -> None:
    files = target.files()
    # From its manifest on it is whole, also where it ended just before it could remove the note that it isn't.
    if MANIFEST in files or (files and not begun(files)):
        what = "a savepoint already" if MANIFEST in files else "files that are no savepoint"
        raise SavepointMismatch(f"{target.path} holds {what}: choose a new or an empty folder", path=target.path)


class _SavepointTry:
    """One try; what it has written is overwritten by the next."""

    def __init__(
        self,
        application: str,
        changelog: Changelog,
        target: Folder,
        checkpoints: Mapping[str, Folder],
        clock: Clock,
        settings: CreateSettings,
    ) -> None:
        self._application = application
        self._changelog = changelog
        self._target = target
        self._checkpoints = checkpoints
        self._clock = clock
        self._settings = settings
        self._id = uuid.uuid4().hex
        self._began = clock.monotonic()
        self._age_ms = 0

    def run(self) -> Savepoint:
        reader = self._changelog.reader()
        with contextlib.closing(reader), scratch_stores() as stores:
            subject = self._subject(reader)
            for name, why in subject.left_out.items():
                _log.warning("a state is left out of the savepoint", extra={"state": name, "why": why})
            states = tuple(self._save_state(subject, state, reader, stores) for state in subject.states)
            queries = self._save_queries(subject)
            self._check_age()
        return Savepoint(
            id=self._id,
            application=self._application,
            created_ms=self._clock.now_ms(),
            queries=queries,
            states=states,
            skipped_queries=subject.skipped,
            fed_queries=subject.fed,
        )

    def _subject(self, reader: ChangelogReader) -> Subject:
        """The complete epochs, with nothing in the changelogs that has replaced any of it for too long."""
        deadline = self._settings.kafka_deadline_seconds
        asked = {state.state: range(state.key_groups) for state in self._control().states}
        self._began = self._clock.monotonic()
        ends = reader.ends(asked, deadline)
        subject = self._settled()
        check_checkpoints(subject, self._checkpoints.keys())
        self._age_ms = max((self._replaced_since(reader, ends, subject, state) for state in subject.states), default=0)
        return subject

    def _control(self) -> Subject:
        try:
            records = self._changelog.control(_READER).read(self._settings.kafka_deadline_seconds)
        except ChangelogRecreated:
            records = {}
        return subject_of(self._application, records)

    def _settled(self) -> Subject:
        """At a moment at which queries that share a checkpoint are at the same batch of it."""
        until = self._clock.monotonic() + self._settings.kafka_deadline_seconds
        while True:
            subject = self._control()
            difference = uneven(subject)
            if difference is None:
                return subject
            if self._clock.monotonic() > until:
                raise SavepointMismatch(
                    f"queries that share one Spark checkpoint don't come to the same batch: {difference}. Let the job "
                    "run until they do"
                )
            self._clock.sleep(_UNEVEN_SECONDS)

    def _replaced_since(
        self, reader: ChangelogReader, ends: Mapping[Partition, int], subject: Subject, state: StateDescriptor
    ) -> int:
        """How long ago, in milliseconds, the first records after the complete epoch were written; 0: there are none.

        Those that are there when the ends are taken, before the complete epoch is looked up, belong to the epoch after
        it; all others are younger than the ends.
        """
        complete = subject.ends(state)
        after = {Partition(state.state, group): end for group, end in complete.items()}
        behind = {part: ends[part] for part, start in after.items() if ends.get(part, 0) > start}
        oldest_ms = now_ms = self._clock.now_ms()
        starts = {part: START._replace(offset=after[part]) for part in behind}
        for piece in reader.read(starts, behind, self._settings.kafka_deadline_seconds):
            if piece.marker is not None:
                oldest_ms = min(oldest_ms, piece.marker.stamp.commit_time_ms)
        age_ms = now_ms - oldest_ms
        if age_ms > self._settings.limit_ms:
            raise SavepointMismatch(
                f"query {state.query!r} has committed a part of the epoch after the last complete one, "
                f"{age_ms / 1000:.0f} s ago: compaction may have removed what it replaced. Run the query until that "
                "epoch is complete, and try again",
                query=state.query,
            )
        return age_ms

    def _check_age(self) -> None:
        elapsed_ms = self._age_ms + 1000 * (self._clock.monotonic() - self._began)
        if elapsed_ms > self._settings.limit_ms:
            raise _TooLate(f"reading took {elapsed_ms / 1000:.0f} s")

    def _save_state(
        self, subject: Subject, state: StateDescriptor, reader: ChangelogReader, stores: StoreEngine
    ) -> SavedState:
        name, ends = state.state, subject.ends(state)
        store = stores.open(self._application, name, self._id)
        try:
            replayed = Replayed(name, reader, store)
            replayed.advance(ends, self._settings.kafka_deadline_seconds)
            self._check_age()
            gone = [group for group, end in ends.items() if replayed.marked(group) != end]
            if gone:
                raise _TooLate(f"the marker of {name} key group {gone[0]} is gone")
            snapshot = replayed.snapshot()
            rows = (item for group in range(state.key_groups) for item in snapshot.items(group))
            files = write_rows(self._target, f"{STATES}/{name}", rows)
            snapshot.close()
        finally:
            store.close()
        stores.destroy(self._application, name)
        _log.info("saved a state", extra={"state": name, "files": len(files)})
        return SavedState(state, sum(file.rows for file in files), files)

    def _save_queries(self, subject: Subject) -> tuple[SavedQuery, ...]:
        return tuple(
            SavedQuery(query.query, query.complete, query.record, self._save_checkpoint(query))
            for query in subject.queries
        )

    def _save_checkpoint(self, query: SubjectQuery) -> SavedCheckpoint | None:
        source = self._checkpoints.get(query.query)
        if source is None:
            return None
        return copy_checkpoint(
            source,
            self._target,
            f"{CHECKPOINTS}/{query.query}",
            query=query.query,
            spark_query_id=query.record.spark_query_id,
            batch=query.batch,
            entry=query.complete.offsets,
            clock=self._clock,
            wait_seconds=self._settings.commit_wait_seconds,
        )
