"""Reads updates topics from where their key groups are, and notices where what is needed isn't there any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, TopicPartition

from keyhole.changelog.base import Partition, UpdatesRun
from keyhole.changelog.kafka.clients import Settings
from keyhole.changelog.kafka.consumer import RecordRun, TopicPart, following_settings, offset_of, runs
from keyhole.changelog.kafka.slices import Slices
from keyhole.changelog.kafka.topic_watch import TopicWatch
from keyhole.changelog.settings import updates_topic_name
from keyhole.errors import ChangelogRecreated
from keyhole.protocol.updates import LoggedUpdate

_FETCHED_RECORDS = 2_000


class KafkaUpdatesTail:
    """UpdatesTail on one consumer that belongs to no group. After it has raised, it can only be closed.

    Args:
        topic_ids: By state, the id that its updates topic has.
    """

    def __init__(self, bootstrap_servers: str, application: str, topic_ids: Mapping[str, str]) -> None:
        self._application = application
        self._watch = TopicWatch(
            bootstrap_servers, {updates_topic_name(application, state): found for state, found in topic_ids.items()}
        )
        self._consumer = Consumer(_settings(bootstrap_servers))
        self._followed: dict[TopicPart, _UpdatesPartition] = {}
        self._slices = Slices()

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        wanted = {
            (updates_topic_name(self._application, part.state), part.key_group): _UpdatesPartition(part, offset)
            for part, offset in offsets.items()
        }
        with self._slices.lock:
            if self._slices.closed:
                return
            kept = {
                place: self._followed[place]
                for place, followed in wanted.items()
                if place in self._followed and self._followed[place].next == followed.next
            }
            dropped = [TopicPartition(*place) for place in self._followed if place not in kept]
            if dropped:
                self._consumer.incremental_unassign(dropped)
            new = [TopicPartition(*place, followed.next) for place, followed in wanted.items() if place not in kept]
            if new:
                self._consumer.incremental_assign(new)
            self._followed = wanted | kept

    def poll(self, seconds: float) -> Sequence[UpdatesRun]:
        return self._slices.poll(self._take, [], seconds)

    def close(self) -> None:
        with self._slices.closing():
            self._consumer.close()
            self._watch.close()

    def _take(self, seconds: float) -> list[UpdatesRun]:
        lost = self._watch.lost(topic for topic, _ in self._followed)
        if lost:
            raise ChangelogRecreated(
                f"the updates topic is gone, or was made anew: {', '.join(lost)}. Drop the state and feed it from the "
                "start",
                topics=", ".join(lost),
            )
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        taken: dict[TopicPart, UpdatesRun] = {}
        for run in runs([first, *self._consumer.consume(_FETCHED_RECORDS, 0)]):
            followed = self._followed.get(run.part)
            if followed is None:  # it was fetched before it was dropped
                continue
            for more in followed.take(run):
                # An end that was reached on the way is none any more.
                before = taken.get(run.part)
                taken[run.part] = more if before is None else more.behind(before)
        return [run if run.end is not None else self._with_end(place, run) for place, run in taken.items()]

    def _with_end(self, place: TopicPart, run: UpdatesRun) -> UpdatesRun:
        """What the consumer has heard of it with what it fetched last; nobody is asked."""
        known = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        return run._replace(log_end=max(0, known[1])) if known else run


def _settings(bootstrap_servers: str) -> Settings:
    return {
        **following_settings(bootstrap_servers),
        # A position that retention has passed, or that is behind the end, is an error: nothing is passed over.
        "auto.offset.reset": "error",
    }


class _UpdatesPartition:
    """One partition, and the next of its offsets to come."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.next = offset

    def take(self, run: RecordRun) -> list[UpdatesRun]:
        """What has come of it. Errors but one are left to the consumer, which tries again, and to the watch."""
        if run.error is not None and run.error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise self._missing(run.error.str())
        start = self.next
        # What was fetched before it was followed anew, from elsewhere.
        updates = [_logged(message) for message in run.records if offset_of(message) >= self.next]
        if updates:
            self.next = updates[-1].offset + 1
        end = run.end if run.end is not None and run.end >= self.next else None
        if end is not None:
            self.next = end
        return [UpdatesRun(self.partition, start, updates, end)] if updates or end is not None else []

    def _missing(self, why: str) -> ChangelogRecreated:
        state, key_group = self.partition
        return ChangelogRecreated(
            f"updates of state {state} from offset {self.next} of partition {key_group} on are needed, and the topic "
            f"does not have them: they were deleted before they were applied, or its end was lost ({why}). Keep them "
            "longer; drop the query (keyhole drop), and feed it from the start",
            state=state,
            partition=key_group,
            offset=self.next,
        )


def _logged(message: Message) -> LoggedUpdate:
    kind, time_ms = message.timestamp()
    # Of a producer's own clock nothing is known. Where the topic had it once, the log's time stands still.
    return LoggedUpdate(offset_of(message), time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0, message.value())
