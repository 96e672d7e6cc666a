"""From where key groups of a state that is fed by updates go on: what their changelog's last markers and their updates
topic say. It is read in a thread that may wait for Kafka, and taken by the host thread, if it is still asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keyhole.changelog.base import Changelog, LogExtent, Partition, UpdatesTopics
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, KafkaUnreachable, NotReady
from keyhole.model.epoch import START, Position
from keyhole.protocol.seen import FeedPosition

Stopped = Callable[[], bool]
"""Whether nobody waits for it any more."""


class NewGroups(NamedTuple):
    """Key groups of one state that are owned, and not begun yet, as the host thread has them.

    Attributes:
        tenures: By key group, in which of its times as an owner.
        at: How far the store is with each.
    """

    state: str
    topic_id: str
    tenures: Mapping[int, int]
    at: Mapping[int, Position]


class Beginning(NamedTuple):
    """What they begin with.

    Attributes:
        positions: As the changelog's last marker of each says.
        extents: Of their logs.
        asked_ms, asked_monotonic: When that was asked, by either clock.
        lost: The updates topic is gone, or another one; None: it is not.
    """

    new: NewGroups
    positions: Mapping[int, FeedPosition]
    extents: Mapping[int, LogExtent]
    asked_ms: int
    asked_monotonic: float
    lost: ChangelogRecreated | None = None


def read_beginning(
    changelog: Changelog, topics: UpdatesTopics, new: NewGroups, deadline_seconds: float, stopped: Stopped, clock: Clock
) -> Beginning:
    """Reads it. Blocks, for each of three questions as long as the deadline; between them it may be stopped.

    Raises:
        KafkaUnreachable: Something can't be read in time, or is not where it must be and may come back.
        NotReady: It was stopped.
    """
    positions = _positions(changelog, new, deadline_seconds, stopped)
    missing = None
    asked_ms, asked_monotonic = clock.now_ms(), clock.monotonic()
    extents: Mapping[Partition, LogExtent] = {}
    try:
        extents = topics.extents({new.state: list(new.tenures)}, deadline_seconds)
    except ChangelogRecreated as error:
        missing = error
    _check(stopped)
    # After the extents: so they are of that topic.
    if topics.lost({new.state: new.topic_id}, deadline_seconds):
        why = ChangelogRecreated(
            f"the updates topic of state {new.state} is gone, or was made anew: drop the query "
            "(keyhole drop), and feed it from the start",
            state=new.state,
        )
        nowhere = dict.fromkeys(new.tenures, LogExtent(0, 0))
        return Beginning(new, positions, nowhere, asked_ms, asked_monotonic, why)
    if missing is not None:
        # The topic is there, and a broker that has just started does not know all of its partitions.
        raise KafkaUnreachable(missing.message)
    by_group = {part.key_group: extent for part, extent in extents.items()}
    return Beginning(new, positions, by_group, asked_ms, asked_monotonic)


def _positions(
    changelog: Changelog, new: NewGroups, deadline_seconds: float, stopped: Stopped
) -> Mapping[int, FeedPosition]:
    """What the last marker of each key group says, up to which the store is restored."""
    found = dict.fromkeys(new.tenures, FeedPosition())
    at = {Partition(new.state, of): position for of, position in new.at.items() if position != START}
    if not at:
        return found
    again = {part: position._replace(offset=position.offset - 1) for part, position in at.items()}
    ends = {part: position.offset for part, position in at.items()}
    with contextlib.closing(changelog.reader()) as reader:
        for piece in reader.read(again, ends, deadline_seconds):
            _check(stopped)
            if piece.marker is not None and piece.marker.feed is not None:
                found[piece.partition.key_group] = piece.marker.feed
    return found


def _check(stopped: Stopped) -> None:
    if stopped():
        raise NotReady("updates are not begun: another assignment is coming, or it stops")
