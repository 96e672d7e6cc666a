"""Boundaries of a real-time query: which offsets one takes of Spark's log, and how it gets into the updates topic.

    batch 17 is in the commit log, its entry of the offset log ends with {"orders":{"0":991900,"1":990012}}
    -> each partition of the updates topic    [0,"<id of orders>.spent",17,{"0":991900,"1":990012},"orders","<its id>"]

All rows below these offsets were acknowledged before Spark logged them. What Spark has not committed is read again, and
no boundary takes it. A new checkpoint reads from the start what an earlier one has read: its boundaries say no less
than the last one that is there. So whoever looks for the last one finds the highest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, CheckpointMismatch
from keyhole.feed.fed_topics import UpdatesTopic
from keyhole.feed.positions import no_lower
from keyhole.feed.updates_search import last_boundary
from keyhole.feed.whole_topic import WholeTopic
from keyhole.protocol.fed_sources import FEED_AGAIN
from keyhole.protocol.updates import BoundaryRecord

_VERSION = "v1"


class CheckpointLogs(Protocol):
    """Spark's two logs of a query, as its checkpoint has them."""

    def last_committed(self) -> int | None:
        """The last batch of the commit log; None: it has none."""

    def offsets(self, batch: int) -> str | None:
        """The whole entry of a batch in the offset log; None: it has none."""


class CommittedBatch(NamedTuple):
    """A batch that Spark never runs again.

    Attributes:
        ends: By source of the query, in its order: by partition, the first offset that may not have been sent.
    """

    batch: int
    ends: Sequence[Mapping[int, int]]

    def at_least(self, before: Sequence[Mapping[int, int]]) -> CommittedBatch:
        """The same, and also all below these ends, by source: see `ends_before`."""
        return self._replace(ends=[no_lower(ends, than) for ends, than in zip(self.ends, before, strict=True)])


def last_batch(log: CheckpointLogs, topics: Sequence[str]) -> CommittedBatch | None:
    """The last batch of the commit log; None: there is none, or its offsets are not known.

    Args:
        topics: Of the query's sources, in its order.

    Raises:
        CheckpointMismatch: The entry is of other sources, or in a form that is not known.
    """
    batch = log.last_committed()
    if batch is None:
        return None
    entry = log.offsets(batch)
    # A driver that was replaced, and wakes, may commit a batch whose offsets the next one has deleted.
    if entry is None:
        return None
    return CommittedBatch(batch, ends_of(entry, topics))


def ends_of(entry: str, topics: Sequence[str]) -> list[dict[int, int]]:
    """The offsets of an entry of Spark's offset log: its version, what the batch was planned with, then each source's.

    Raises:
        CheckpointMismatch: See last_batch.
    """
    version, _, *sources = entry.splitlines() or [""] * 2
    if version != _VERSION:
        raise _mismatch(f"has an offset log of version {version!r}, and {_VERSION!r} is known")
    if len(sources) != len(topics):
        raise _mismatch(f"is of a query with {len(sources)} sources, and this one has {len(topics)}")
    found = []
    for topic, text in zip(topics, sources, strict=True):
        try:
            of_source = msgspec.json.decode(text, type=dict[str, dict[int, int]])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _mismatch(f"has no offsets of Kafka where those of topic {topic} should be") from None
        # A topic that has no partition with a record yet may be left out.
        if other := sorted(of_source.keys() - {topic}):
            raise _mismatch(f"has offsets of topic {other[0]} where those of topic {topic} should be")
        found.append(of_source.get(topic, {}))
    return found


def ends_before(updates: UpdatesTopic, sources: Mapping[str, str]) -> list[Mapping[int, int]]:
    """By source, up to where its last boundary in the updates topic says that all was sent; empty: there is none.

    Args:
        sources: As of write_boundaries.

    Raises:
        KeyholeError: Kafka can't be reached, or refuses.
    """
    return [last_boundary(updates, topic, source).ends or {} for source, topic in sources.items()]


def write_boundaries(
    updates: UpdatesTopic, updates_id: str, sources: Mapping[str, str], batch: CommittedBatch, clock: Clock
) -> None:
    """Writes a batch's boundary of each source to each partition. Blocks until all are acknowledged, at most 30 s.

    One that is written in part, or twice, says the same: whoever was killed at any step is followed by one that does it
    all once more.

    Args:
        updates_id: Of the topic that the batch's rows were sent to.
        sources: In the query's order, each with the name of its topic: a feeder that finds a topic of that name made
            anew goes by it.

    Raises:
        ChangelogRecreated: The updates topic is another one now, which lacks these rows.
        KafkaUnreachable: Kafka has not taken them in that time.
        KeyholeError: Kafka refuses them.
    """
    # Directly before: what is sent goes by the topic's name.
    for found in (updates.topic_id, updates.look()):
        if found != updates_id:
            raise ChangelogRecreated(
                f"the updates topic was deleted and made anew (its id is {found}, it was {updates_id}), and what the "
                f"query had sent is gone with it: {FEED_AGAIN} by a new checkpoint",
                topic_id=found,
            )
    whole = WholeTopic(updates, clock)
    for (source, topic), ends in zip(sources.items(), batch.ends, strict=True):
        if ends:
            whole.write(BoundaryRecord(source, batch.batch, dict(ends), topic, updates_id))
    whole.wait(f"the boundary of batch {batch.batch}")


def _mismatch(why: str) -> CheckpointMismatch:
    return CheckpointMismatch(f"the checkpoint {why}: give the real-time query a checkpoint of its own")
