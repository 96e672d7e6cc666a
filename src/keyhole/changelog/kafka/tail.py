"""Follows changelogs beyond their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from keyhole.changelog.base import Partition, Reached, RestoredEpochs
from keyhole.changelog.kafka.consumer import RecordRun, TopicPart, as_records, following_settings, offset_of, runs
from keyhole.changelog.kafka.slices import Slices
from keyhole.changelog.kafka.topic_watch import TopicWatch
from keyhole.changelog.records import EpochAssembler, PieceLimits
from keyhole.changelog.settings import topic_name
from keyhole.errors import ChangelogRecreated
from keyhole.model.epoch import Position

# A piece is handed out at each poll where there is a marker; these bound it where much has come since the last one.
_LIMITS = PieceLimits(records=20_000, bytes=16 << 20, unmarked_records=50_000, unmarked_bytes=16 << 20)
_FETCHED_RECORDS = 2_000


class KafkaTail:
    """ChangelogTail on one consumer that belongs to no group. After it has raised, it can only be closed."""

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._application = application
        self._watch = TopicWatch(bootstrap_servers)
        self._consumer = Consumer(following_settings(bootstrap_servers))
        self._followed: dict[TopicPart, _FollowedPartition] = {}
        self._slices = Slices()

    def follow(self, positions: Mapping[Partition, Position]) -> None:
        wanted = {(topic_name(self._application, part.state), part.key_group): part for part in positions}
        with self._slices.lock:
            if self._slices.closed:
                return
            kept = {
                place: self._followed[place]
                for place, part in wanted.items()
                if place in self._followed and self._followed[place].position == positions[part]
            }
            for followed in kept.values():
                followed.ordered_anew = True
            new = {
                place: _FollowedPartition(part, positions[part]) for place, part in wanted.items() if place not in kept
            }
            dropped = [TopicPartition(*place) for place in self._followed if place not in kept]
            if dropped:
                self._consumer.incremental_unassign(dropped)
            if new:
                self._consumer.incremental_assign(
                    [TopicPartition(*place, followed.next_offset) for place, followed in new.items()]
                )
            self._followed = kept | new

    def poll(self, seconds: float) -> Sequence[RestoredEpochs | Reached]:
        return self._slices.poll(self._take, [], seconds)

    def close(self) -> None:
        with self._slices.closing():
            self._consumer.close()
            self._watch.close()

    def _take(self, seconds: float) -> list[RestoredEpochs | Reached]:
        lost = self._watch.lost(topic for topic, _ in self._followed)
        if lost:
            raise ChangelogRecreated(
                f"the changelog is gone, or was made anew: {', '.join(lost)}. Restore it from a copy, or drop "
                "the state",
                topics=", ".join(lost),
            )
        items: list[RestoredEpochs | Reached] = []
        for again in self._followed.values():
            items += again.told_again()
        first = self._consumer.poll(0 if items else seconds)
        if first is None:
            return items
        for run in runs([first, *self._consumer.consume(_FETCHED_RECORDS, 0)]):
            followed = self._followed.get(run.part)
            if followed is not None:  # else it was fetched before it was dropped
                items += followed.take(run)
        return items


class _FollowedPartition:
    """One partition: what was read of it, and what was handed out.

    Attributes:
        position: Of the last piece that was handed out.
        next_offset: No record before it is to come.
        ordered_anew: It was followed already when it was asked for again, and has not reached its end since.
    """

    def __init__(self, partition: Partition, position: Position) -> None:
        self._partition = partition
        self._assembler = EpochAssembler(partition, position, _LIMITS)
        self._at_end = False
        self.position = position
        self.next_offset = position.offset
        self.ordered_anew = False

    def take(self, run: RecordRun) -> list[RestoredEpochs | Reached]:
        """What has come of it. Errors are left to the consumer, which tries again, and to the watch."""
        pieces: list[RestoredEpochs] = []
        if run.records:
            self._expect(run, offset_of(run.records[0]))
            pieces += self._assembler.add(as_records(run.records))
            pieces += self._assembler.cut()
            self.next_offset, self._at_end = offset_of(run.records[-1]) + 1, False
        if pieces:
            self.position = pieces[-1].position
        if run.end is None:
            return [*pieces]
        self._expect(run, run.end)
        self.next_offset, self._at_end, self.ordered_anew = run.end, True, False
        return [*pieces, Reached(self._partition, run.end)]

    def _expect(self, run: RecordRun, offset: int) -> None:
        if offset < self.next_offset:
            topic, number = run.part
            raise ChangelogRecreated(
                f"partition {number} of topic {topic} goes on at offset {offset}, where {self.next_offset} was to "
                "come: the topic was made anew, or has lost its end. What was read of it is rebuilt from its start",
                topic=topic,
                partition=number,
            )

    def told_again(self) -> list[Reached]:
        """Kafka reports an end once only; whoever asks for the partition again is to hear of it too."""
        if not (self.ordered_anew and self._at_end):
            return []
        self.ordered_anew = False
        return [Reached(self._partition, self.next_offset)]
