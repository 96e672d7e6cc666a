"""The feeder: reads a source topic, and sends each row to the updates topic at least once. Owners count it once.

    take the lease             whoever had it hears so at its next `keep`, and stops
    read the last boundary     from there on rows are sent
    write ends                 of topics of that name that are gone, to every partition, before any boundary
    write it once more         to every partition, before the first row
    read, map, send            each row under its number; what can't be read goes to the dead letters
    write boundaries           once all below them is acknowledged

They do so by its number. So a feeder that dies, or sends beside another one, changes nothing: the log has repetitions,
which are passed over. It keeps no position but the boundaries; the group's offsets are for Kafka's tools alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from keyhole.clock import Clock
from keyhole.errors import MalformedRequest, RequestError, TooLarge
from keyhole.feed.fed_topics import DeadLetterTopic, FeederLease, SourceTopic, UpdatesTopic
from keyhole.feed.mapping import RecordMapper, RoutedUpdate
from keyhole.feed.positions import (
    FoundBoundaries,
    SourceDescription,
    check_starts,
    made_anew,
    no_lower,
    start_positions,
    updates_made_anew,
)
from keyhole.feed.record_encoding import RegistryAway
from keyhole.feed.rows import SourceRecord
from keyhole.feed.source_progress import SourceProgress
from keyhole.feed.updates_search import last_boundary
from keyhole.feed.whole_topic import WholeTopic
from keyhole.protocol.updates import BoundaryRecord, EndRecord, encode

MOST_WAITING = 20_000
"""Above so many sends without an acknowledgement the source is not read on."""

_WAIT_SECONDS = 0.1


class Feeder:
    """Feeds one source topic into one state. One thread; `start`, then `step` again and again.

    What either of them raises ends it: a new one goes on from the last boundary.

    Args:
        topic: Name of the source topic.
        mapper_of: Makes the mapping, of the name under which the source's rows stand: Kafka's id of the topic.
        boundary_seconds: How often a boundary is written, and the source and the lease are looked at.
        repeat_seconds: So often one is written also where nothing has come: the last one must not be deleted with old
            updates.
        from_earliest: See start_positions.
        topic_id: Of the source, as it is on record; empty: whichever it is.
        strict: A record that would be a dead letter ends it, and nothing behind that record in its partition is sent.
    """

    def __init__(
        self,
        topic: str,
        mapper_of: Callable[[str], RecordMapper],
        source: SourceTopic,
        updates: UpdatesTopic,
        dead_letters: DeadLetterTopic,
        lease: FeederLease,
        clock: Clock,
        *,
        boundary_seconds: float = 1.0,
        repeat_seconds: float = 600.0,
        from_earliest: bool = False,
        topic_id: str = "",
        strict: bool = False,
    ) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._mapper_of = mapper_of
        self._source = source
        self._updates = updates
        self._dead_letters = dead_letters
        self._lease = lease
        self._clock = clock
        self._boundary_seconds = boundary_seconds
        self._repeat_seconds = repeat_seconds
        self._from_earliest = from_earliest
        self._strict = strict
        self._whole = WholeTopic(updates, clock)
        self._boundary: dict[int, int] = {}
        self._before: Mapping[int, int] = {}
        self._boundary_at = self._looked_at = clock.monotonic()
        self.refused = 0
        """How many records went to the dead letters."""
        self.why_refused = ""
        """Why the last of these did: it quotes nothing of the record."""

    def start(self) -> None:
        """Begins where the last one was. Blocks until that is in the log, in each partition.

        Raises:
            ChangelogRecreated: See start_positions; or the source is no more the one on record, or the updates topic is
                made anew meanwhile.
            Fenced: Another feeder began at the same time.
            KafkaUnreachable: It can't be reached, or has not taken what was written within 30 s.
            KeyholeError: Kafka refuses.
        """
        self._lease.take()
        described, found, positions = where_to_begin(
            self._topic, self._source, self._updates, from_earliest=self._from_earliest
        )
        if self._topic_id not in ("", described.topic_id):
            raise made_anew(self._topic, self._topic_id, described.topic_id)
        self._topic_id = described.topic_id
        # With from_earliest it is read again from below that.
        self._before = found.ends or {}
        self._progress = SourceProgress(positions)
        self._mapper = self._mapper_of(self._topic_id)
        if found.ends is None and found.other_ids:
            # These topics are gone, and their rows need not be remembered any more. Whoever finds our boundary looks
            # for none of them: they must have ended in every partition before.
            self._check_updates_topic()
            for other_id in found.other_ids:
                self._whole.write(EndRecord(other_id))
            self._await_written()
        self._check_updates_topic()
        self._write_boundary(positions)
        self._await_written()
        self._lease.keep(positions)
        self._source.read_from(positions)

    def _await_written(self) -> None:
        self._whole.wait(f"a boundary of topic {self._topic}")

    def _check_updates_topic(self) -> None:
        """Directly before a boundary: in a topic made anew it would say that rows stand there which do not."""
        topic_id = self._updates.look()
        if topic_id != self._updates.topic_id:
            raise updates_made_anew(self._topic, self._updates.topic_id, topic_id)

    def step(self, seconds: float) -> int:
        """Writes a boundary if one is due, and feeds what comes within that time.

        Returns:
            How many records were read.

        Raises:
            Fenced: Another feeder has begun.
            ChangelogRecreated: The source or the updates topic was made anew, or records were deleted before they were
                read.
            KeyholeError: Kafka can't be reached, or refuses.
            RegistryAway: How a record is to be read can't be asked now. It was not sent, and those before it were:
                `finish`, and a new feeder begins with it.
            MalformedRequest: A record can't be fed, and the feeder is strict. The same holds of it.
        """
        # First: whoever wakes late finds out before it sends.
        if self._clock.monotonic() - self._looked_at >= self._boundary_seconds:
            self._look()
        if self._progress.waiting > MOST_WAITING:
            # And back: whoever is to stop must hear so, however long Kafka takes.
            self._serve(_WAIT_SECONDS)
            return 0
        records = self._source.poll(seconds)
        for record in records:
            self._feed(record)
        self._serve(0.0)
        return len(records)

    def finish(self, seconds: float = 30.0) -> bool:
        """Waits for all that was sent, and writes the last boundary. Raises as `step`.

        Returns:
            Whether that was done within the time. Where it was not, whoever follows sends some of it once more.
        """
        until = self._clock.monotonic() + seconds
        done = self._wait(until)
        self._look()
        return self._wait(until) and done

    def _wait(self, until: float) -> bool:
        while self._progress.waiting or self._whole.unwritten:
            if self._clock.monotonic() >= until:
                return False
            self._serve(_WAIT_SECONDS)
        return True

    @property
    def waiting(self) -> int:
        """How many sends wait for their acknowledgement."""
        return self._progress.waiting

    def _serve(self, seconds: float) -> None:
        self._updates.poll(seconds)
        self._dead_letters.poll(0.0)

    def _feed(self, record: SourceRecord) -> None:
        partition, offset = record.partition, record.offset

        def done() -> None:
            self._progress.acknowledged(partition, offset)

        try:
            encoded = self._encoded(self._mapper.updates(record))
        except (MemoryError, RegistryAway):
            raise
        except Exception as error:  # noqa: BLE001 - were one record to end a feeder, none would come past it
            if self._strict:
                # Not as the cause: it may quote the record.
                raise self._unfit(record, _reason(error)) from None
            self.refused += 1
            self._progress.begin(partition, offset, 1)
            self.why_refused = _reason(error)
            self._dead_letters.send(record, self.why_refused, done)
            return
        self._progress.begin(partition, offset, len(encoded))
        for group, value in encoded:
            self._updates.send(group, value, done)

    def _unfit(self, record: SourceRecord, why: str) -> MalformedRequest:
        place = f"the record at offset {record.offset} of partition {record.partition} of topic {self._topic}"
        return MalformedRequest(
            f"{place} can't be fed: {why}. All before it in its partition is fed, and nothing behind it. Without "
            f"--strict the next start goes on there, and the record goes to {self._topic}.dead-letter",
            topic=self._topic,
            partition=record.partition,
            offset=record.offset,
        )

    def _encoded(self, updates: Iterable[RoutedUpdate]) -> list[tuple[int, bytes]]:
        """All of a record's, or none. Raises TooLarge."""
        encoded = [(update.key_group, encode(update.record)) for update in updates]
        largest = max((len(value) for _, value in encoded), default=0)
        if largest > self._updates.most_bytes:
            raise TooLarge(
                f"an update takes {largest} bytes, and the updates topic takes {self._updates.most_bytes}",
                bytes=largest,
                limit=self._updates.most_bytes,
            )
        return encoded

    def _look(self) -> None:
        """Whether source, lease and updates topic are as they were; then a boundary, where one is due."""
        self._looked_at = self._clock.monotonic()
        topic_id, partitions = self._source.look()
        if topic_id != self._topic_id:
            raise made_anew(self._topic, self._topic_id, topic_id)
        ends = self._progress.ends()
        if partitions > len(ends):
            self._read_new_partitions(ends)
            ends = self._progress.ends()
        self._lease.keep(ends)
        self._check_updates_topic()
        old = self._looked_at - self._boundary_at >= self._repeat_seconds
        if not self._whole.unwritten and (old or ends != self._boundary):
            self._write_boundary(ends)

    def _read_new_partitions(self, known: Mapping[int, int]) -> None:
        described = self._source.describe()
        if described.topic_id != self._topic_id:
            raise made_anew(self._topic, self._topic_id, described.topic_id)
        new = dict.fromkeys(described.starts.keys() - known.keys(), 0)
        check_starts(described, new)
        self._progress.add(new)
        self._source.read_from(new)

    def _write_boundary(self, ends: Mapping[int, int]) -> None:
        self._boundary, self._boundary_at = dict(ends), self._clock.monotonic()
        updates_id, said = self._updates.topic_id, no_lower(ends, self._before)
        self._whole.write(BoundaryRecord(self._topic_id, self._clock.now_ms(), said, self._topic, updates_id))


def where_to_begin(
    topic: str, source: SourceTopic, updates: UpdatesTopic, *, from_earliest: bool
) -> tuple[SourceDescription, FoundBoundaries, dict[int, int]]:
    """What there is of the source, what the updates topic says of it, and from where on a feeder sends. Takes nothing.

    Raises:
        ChangelogRecreated, ConflictError: See start_positions.
        KeyholeError: Kafka can't be reached, or refuses.
    """
    described = source.describe()
    found = last_boundary(updates, topic, described.topic_id)
    return described, found, start_positions(described, found, from_earliest=from_earliest)


def _reason(error: Exception) -> str:
    """Why a record is a dead letter. Of what is no refusal of ours only the kind: its text may quote the record."""
    return error.message if isinstance(error, RequestError) else f"the record can't be read: {type(error).__name__}"
