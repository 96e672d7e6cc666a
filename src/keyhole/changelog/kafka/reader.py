"""Committed records out of topics: where they end, all up to there, and as epochs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.changelog.kafka.asked_offsets import UNKNOWN, OffsetsClient
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of, unreachable
from keyhole.changelog.kafka.consumer import RecordRun, TopicPart, as_records, consumer_settings, offset_of, runs
from keyhole.changelog.kafka.unmade_topics import unmade
from keyhole.changelog.records import EACH_EPOCH, EpochAssembler, PieceLimits
from keyhole.changelog.settings import topic_name
from keyhole.errors import ChangelogRecreated
from keyhole.model.epoch import Position

# One partition after the other, since what is written into a store together should lie together in it. But the next
# ones are begun when so few records are left that Kafka would have to be waited for; each takes a share of the memory.
_AHEAD_RECORDS = 20_000
_AT_A_TIME = 4
_LIMITS = PieceLimits(records=50_000, bytes=16 << 20, unmarked_records=50_000, unmarked_bytes=16 << 20)
_FETCHED_RECORDS = 2_000
_CONSUME_SECONDS = 0.02
_RETRY_SECONDS = 0.1
# A topic that was made a moment ago may not be known to every broker yet; where the controller does not say which there
# are, this is waited for.
_NEW_TOPIC_SECONDS = 2.0
_REQUEST_SECONDS = 3.0


class KafkaReader:
    """ChangelogReader on a consumer that belongs to no group. One thread at a time."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._application = application
        self._log = CommittedLog(bootstrap_servers)

    def ends(self, states: Mapping[str, Sequence[int]], deadline_seconds: float) -> Mapping[Partition, int]:
        asked = {
            (topic_name(self._application, state), group): Partition(state, group)
            for state, groups in states.items()
            for group in groups
        }
        return {asked[part]: end for part, end in self._log.ends(list(asked), deadline_seconds).items()}

    def read(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        return self._read(positions, ends, deadline_seconds, _LIMITS)

    def epochs(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        return self._read(positions, ends, deadline_seconds, EACH_EPOCH)

    def _read(
        self,
        positions: Mapping[Partition, Position],
        ends: Mapping[Partition, int],
        deadline_seconds: float,
        limits: PieceLimits,
    ) -> Iterator[RestoredEpochs]:
        behind = {part: end for part, end in ends.items() if positions[part].offset < end}
        names = {part: (topic_name(self._application, part.state), part.key_group) for part in behind}
        assemblers = {names[part]: EpochAssembler(part, positions[part], limits) for part in behind}
        bounds = {names[part]: (positions[part].offset, end) for part, end in behind.items()}
        for run in self._log.read(bounds, deadline_seconds):
            yield from assemblers[run.part].add(as_records(run.records))
            if run.end is not None:
                yield from assemblers.pop(run.part).end(run.end)

    def close(self) -> None:
        """Nothing stays open between calls."""


class CommittedLog:
    """Reads topics as plain records, committed ones only. One thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def ends(self, parts: Sequence[TopicPart], deadline_seconds: float) -> dict[TopicPart, int]:
        """The offset after the last committed record of each.

        Raises:
            ChangelogRecreated: A topic is gone, or has fewer partitions.
            KafkaUnreachable: Not before the deadline.
        """
        if not parts:
            return {}
        deadline = Deadline(deadline_seconds)
        told = False
        while True:
            # A new client each time: one that remembers the leader of before a broker's restart asks it in vain until
            # the request times out, and then takes "no offset" for an answer.
            with closing(OffsetsClient(self._bootstrap_servers, committed=True)) as client:
                try:
                    asked = client.ends(parts, min(_REQUEST_SECONDS, deadline.left))
                    if not asked.errors:
                        return asked.found
                    error = next(iter(asked.errors.values()))
                    unknown = {topic for (topic, _), of in asked.errors.items() if of.code() in UNKNOWN}
                    if unknown and not told:
                        gone = unmade(self._bootstrap_servers, unknown, min(_REQUEST_SECONDS, deadline.left))
                        if gone:
                            raise self._gone(", ".join(sorted(gone)))
                        told = gone is not None
                except KafkaException as exception:
                    error = error_of(exception)
                if deadline.age > _NEW_TOPIC_SECONDS:
                    self._refuse_missing(client, parts, deadline)
            if deadline.passed:
                raise as_ours(error, self._bootstrap_servers, "tell where the changelog ends")
            time.sleep(min(_RETRY_SECONDS, deadline.left))

    def read(self, bounds: Mapping[TopicPart, tuple[int, int]], deadline_seconds: float) -> Iterator[RecordRun]:
        """All committed records with start <= offset < end, in order within a partition; its last run has its end.

        Records that were aborted, and those that Kafka writes itself, take up offsets too: the end may be reached
        without a record at it.

        Raises:
            ChangelogRecreated: A topic is gone.
            KafkaUnreachable: Nothing came for `deadline_seconds`.
        """
        waiting = deque(part for part, (start, end) in bounds.items() if start < end)
        if not waiting:
            return
        # How many offsets are left of each; compaction has left fewer records.
        reading: dict[TopicPart, int] = {}
        consumer = Consumer(consumer_settings(self._bootstrap_servers))
        try:
            deadline = Deadline(deadline_seconds)
            while waiting or reading:
                while waiting and len(reading) < _AT_A_TIME and sum(reading.values()) < _AHEAD_RECORDS:
                    part = waiting.popleft()
                    start, end = bounds[part]
                    consumer.incremental_assign([TopicPartition(*part, start)])
                    reading[part] = end - start
                messages = consumer.consume(_FETCHED_RECORDS, _CONSUME_SECONDS)
                if messages:
                    for run in runs(messages):
                        if run.error is not None and run.error.code() in UNKNOWN:
                            raise self._gone(run.error.str())
                        if run.part in reading:
                            run = _within(run, bounds[run.part][1])
                            yield run
                            if run.records:
                                reading[run.part] = bounds[run.part][1] - 1 - offset_of(run.records[-1])
                            if run.end is not None:
                                del reading[run.part]
                                consumer.incremental_unassign([TopicPartition(*run.part)])
                    # What the caller does with them doesn't count.
                    deadline = Deadline(deadline_seconds)
                elif deadline.passed:
                    raise unreachable(
                        self._bootstrap_servers, "be read from", f"nothing came for {deadline_seconds:g} s"
                    )
        finally:
            consumer.close()

    def _refuse_missing(self, client: OffsetsClient, parts: Sequence[TopicPart], deadline: Deadline) -> None:
        try:
            topics = client.topics(min(_REQUEST_SECONDS, deadline.left)).topics
        except KafkaException:
            return  # then nothing is known
        gone = sorted(
            {topic for topic, number in parts if topic not in topics or number not in topics[topic].partitions}
        )
        if gone:
            raise self._gone(", ".join(gone))

    def _gone(self, what: str) -> ChangelogRecreated:
        return ChangelogRecreated(
            f"the changelog is gone, or has fewer partitions than it had: {what}. Restore it from a copy, or drop the "
            "state",
            topics=what,
        )


def _within(run: RecordRun, end: int) -> RecordRun:
    """What of the run is before the end; its own `end` is set if it reaches that."""
    records = run.records
    if records and offset_of(records[-1]) >= end - 1:
        return RecordRun(run.part, [record for record in records if offset_of(record) < end], end)
    return RecordRun(run.part, records, end if run.end is not None and run.end >= end else None)
