"""Runs a feeder until it is to stop, through outages of Kafka and of a schema registry, and says how far it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from keyhole.backoff import Backoff
from keyhole.changelog.kafka.absences import Absences, IsGone, gone_at_once
from keyhole.changelog.settings import updates_topic_name
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, InvalidConfiguration, KafkaUnreachable, MalformedRequest
from keyhole.feed.deleting_records import NO_ROWS, Deletions
from keyhole.feed.earlier_sources import check_earlier
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.feeder import Feeder, where_to_begin
from keyhole.feed.kafka.feeder_rights import check_feeder
from keyhole.feed.kafka.lease import KafkaFeederLease
from keyhole.feed.kafka.letters import KafkaDeadLetterTopic
from keyhole.feed.kafka.source import KafkaSource
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.positions import updates_made_anew
from keyhole.feed.record_encoding import JSON, RecordEncoding, RegistryAway
from keyhole.model.state import StateDescriptor
from keyhole.protocol.fed_sources import FEED_AGAIN, unrecorded

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.1, 5.0
_REGISTRY = "the schema registry"
_TELL_SECONDS = 0.5
_RIGHTS_SECONDS = 30.0
# Whoever is asked to end is killed after 30 s, mostly.
_FINISH_SECONDS = 10.0

Behind = Callable[[], int | None]
"""How many offsets of the source are not read yet; None: it is not known."""


class FeedFigures(NamedTuple):
    """How far a feed is, for people. Of this process alone: a record that is sent once more counts once more.

    Attributes:
        feeding: A feeder has begun: what is read is sent.
        records: That were read of the source.
        refused: How many of these are among the dead letters.
        why_refused: Why the last of them is; empty: none is.
        behind: How many offsets of the source are not read yet; None: it is not known.
        waits_for: What is away, where it does not feed.
    """

    feeding: bool = False
    records: int = 0
    refused: int = 0
    why_refused: str = ""
    behind: int | None = None
    waits_for: str = "Kafka"


class TopicFeed:
    """One source topic, fed into one state. One thread.

    Args:
        descriptor: Of the state; its updates topic exists, and has rules.
        topic: The source.
        from_earliest: See keyhole.feed.positions.start_positions; it holds for the first start alone.
        encoding: Of the source's records.
        columns, deletions: As of RecordMapper.
        topic_id: Kafka's id of the source, as it is on record; empty: whichever it is.
        strict: As of Feeder.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        descriptor: StateDescriptor,
        topic: str,
        record_format: RecordFormat,
        clock: Clock,
        *,
        boundary_seconds: float = 1.0,
        from_earliest: bool = False,
        encoding: RecordEncoding = JSON,
        columns: Sequence[str] = (),
        deletions: Deletions = NO_ROWS,
        topic_id: str = "",
        strict: bool = False,
    ) -> None:
        self._topic_id = topic_id
        self._deletions = deletions
        self._strict = strict
        self._encoding = encoding
        self._columns = columns
        self._bootstrap_servers = bootstrap_servers
        self._descriptor = descriptor
        self._topic = topic
        self._format = record_format
        self._clock = clock
        self._boundary_seconds = boundary_seconds
        self._from_earliest = from_earliest
        self._updates_id = descriptor.updates_topic_id
        self._lease = f"keyhole.{descriptor.application}.{descriptor.state}.feed.{topic}"
        self._figures = FeedFigures()
        self._told_at = 0.0
        self._absences = Absences()

    @property
    def figures(self) -> FeedFigures:
        """How far it is. Any thread; half a second old at most, while records come."""
        return self._figures

    def check_rights(self) -> None:
        """Asks Kafka whether it lets this process feed. Takes nothing from one that does.

        Raises:
            InvalidConfiguration: It does not let it read the source, keep positions or write dead letters.
            KafkaUnreachable: It can't be known.
        """
        check_feeder(self._bootstrap_servers, self._topic, self._lease, _RIGHTS_SECONDS)

    def sources(self) -> Mapping[str, str]:
        """By which source it feeds the state, with the topic's name. Asks Kafka for the topic's id.

        Raises:
            ChangelogRecreated: There is no such topic.
            KafkaUnreachable: It can't be known.
        """
        with closing(KafkaSource(self._bootstrap_servers, self._topic)) as source:
            topic_id, _ = source.look()
        return {topic_id: self._topic}

    def check(self, recorded: Collection[str]) -> None:
        """Passes where a feeder could begin now. Takes nothing from one that feeds.

        Args:
            recorded: The sources that are on record of the state.

        Raises:
            KafkaUnreachable: It can't be known.
            StateConflict: The topic has fed the state by a real-time query.
            KeyholeError: As `run`.
        """
        with ExitStack() as opened:
            updates, source = self._opened_topics(opened)
            topic_id, _ = source.look()
            if new := unrecorded(recorded, {topic_id: self._topic}):
                check_earlier(updates, self._descriptor.state, new)
            where_to_begin(self._topic, source, updates, from_earliest=self._from_earliest)

    def run(self, stop: threading.Event) -> None:
        """Feeds until `stop` is set. Where Kafka is away it begins again, from the last boundary, once it is back.

        So it does where a schema registry does not say how a record is to be read: at that record.

        Raises:
            Fenced: Another feeder has begun.
            ChangelogRecreated: The source or the updates topic was made anew, or records were deleted before they were
                read.
            MalformedRequest: A record can't be fed, and the feed is strict: the next one begins with it.
            KeyholeError: Kafka refuses, or the state is not fed by updates.
        """
        backoff, registry_backoff = (Backoff(_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS) for _ in range(2))
        while not stop.is_set():
            try:
                with self._opened() as (feeder, behind):
                    feeder.start()
                    for topic in (
                        self._topic,
                        updates_topic_name(self._descriptor.application, self._descriptor.state),
                    ):
                        self._absences.found(topic)
                    self._from_earliest = False
                    backoff.reset()
                    before = self._figures
                    records = before.records
                    while not stop.is_set():
                        try:
                            if read := feeder.step(_POLL_SECONDS):
                                registry_backoff.reset()
                        except (RegistryAway, MalformedRequest):
                            # With a boundary at that record: what was sent before it is not sent once more each time.
                            feeder.finish(_FINISH_SECONDS)
                            self._tell(before, feeder, behind, records, last=True)
                            raise
                        records += read
                        self._tell(before, feeder, behind, records)
                    if not feeder.finish(_FINISH_SECONDS):
                        _log.warning(
                            "Kafka has not taken all that was sent; the next start sends the rest once more",
                            extra={"topic": self._topic, "waiting": feeder.waiting},
                        )
                    self._tell(before, feeder, behind, records, last=True)
            except KafkaUnreachable as error:
                self._figures = self._figures._replace(feeding=False, behind=None, waits_for="Kafka")
                _log.warning(
                    "Kafka is away; the feeder begins again", extra={"topic": self._topic, "why": error.message}
                )
                self._clock.wait(stop, backoff.next())
            except RegistryAway as error:
                self._figures = self._figures._replace(feeding=False, behind=None, waits_for=_REGISTRY)
                _log.warning(
                    "a record can't be read without the schema registry; the feeder begins again with it",
                    extra={"topic": self._topic, "why": str(error)},
                )
                self._clock.wait(stop, registry_backoff.next())

    def _tell(self, before: FeedFigures, feeder: Feeder, behind: Behind, records: int, *, last: bool = False) -> None:
        now = self._clock.monotonic()
        if not last and self._figures.feeding and now - self._told_at < _TELL_SECONDS:
            return
        self._told_at = now
        self._figures = FeedFigures(
            True,
            records,
            before.refused + feeder.refused,
            feeder.why_refused or before.why_refused,
            behind(),
        )

    @contextmanager
    def _opened(self) -> Iterator[tuple[Feeder, Behind]]:
        with ExitStack() as opened:
            updates, source = self._opened_topics(opened, self._is_gone)
            letters = opened.enter_context(closing(KafkaDeadLetterTopic(self._bootstrap_servers, self._topic)))
            feeder = Feeder(
                self._topic,
                lambda source_id: RecordMapper(
                    self._descriptor, self._format, source_id, self._encoding, self._columns, self._deletions
                ),
                source,
                updates,
                letters,
                opened.enter_context(closing(KafkaFeederLease(self._bootstrap_servers, self._lease, self._topic))),
                self._clock,
                boundary_seconds=self._boundary_seconds,
                from_earliest=self._from_earliest,
                topic_id=self._topic_id,
                strict=self._strict,
            )
            yield feeder, source.behind

    def _is_gone(self, topic: str) -> bool:
        """A broker that is just back may not have heard of every topic yet."""
        return self._absences.is_gone(topic, self._clock.monotonic())

    def _opened_topics(self, opened: ExitStack, is_gone: IsGone = gone_at_once) -> tuple[KafkaUpdates, KafkaSource]:
        topic = updates_topic_name(self._descriptor.application, self._descriptor.state)
        try:
            updates = opened.enter_context(closing(KafkaUpdates(self._bootstrap_servers, topic, is_gone)))
        except InvalidConfiguration as error:
            if not self._updates_id:
                raise
            raise ChangelogRecreated(
                f"topic {topic} does not exist any more, and what had been fed is gone with it: {FEED_AGAIN}",
                topic=topic,
            ) from error
        # A feeder that begins again after an outage must not take an empty topic for one that was never fed.
        if self._updates_id not in ("", updates.topic_id):
            raise updates_made_anew(self._topic, self._updates_id, updates.topic_id)
        self._updates_id = updates.topic_id
        return updates, opened.enter_context(closing(KafkaSource(self._bootstrap_servers, self._topic, is_gone)))
